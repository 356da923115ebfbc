# What `cmake --install` puts where, and the Debian package that `cpack` makes (docs/operator-guide.md, "Installing").
# Components: runtime (programs), development (library, headers, CMake package), package (what only the .deb holds).
include(CMakePackageConfigHelpers)

set(cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvblend)
get_property(engine_libraries GLOBAL PROPERTY KVBLEND_ENGINE_LIBRARIES)
install(TARGETS ${engine_libraries} EXPORT kvblend
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/kvblend COMPONENT development)
install(EXPORT kvblend FILE kvblendTargets.cmake NAMESPACE kvblend:: DESTINATION ${cmake_dir} COMPONENT development)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/kvblendConfig.cmake.in
  ${PROJECT_BINARY_DIR}/kvblendConfig.cmake INSTALL_DESTINATION ${cmake_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvblendConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvblendConfig.cmake ${PROJECT_BINARY_DIR}/kvblendConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/dependencies_engine.cmake DESTINATION ${cmake_dir} COMPONENT development)
install(DIRECTORY engine/api DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvblend/engine COMPONENT development
  FILES_MATCHING PATTERN *.h)
# As Protobuf installs its own: `protoc -I /usr/include kvblend/v1/inference.proto` finds them.
install(DIRECTORY proto/kvblend DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
  FILES_MATCHING PATTERN *.proto)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime RENAME copyright)
if(NOT KVBLEND_BUILD_SERVER)
  return()
endif()

install(TARGETS kvblend kvblend-server RUNTIME COMPONENT runtime)
# Where `kvblend model fetch` looks for it, from bin.
install(PROGRAMS deploy/fetch_model.sh DESTINATION share/kvblend COMPONENT runtime)
install(FILES deploy/systemd/kvblend-server.service DESTINATION lib/systemd/system
  COMPONENT package EXCLUDE_FROM_ALL)
install(FILES deploy/debian/server.conf DESTINATION /etc/kvblend COMPONENT package EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "the kvblend authors <kvblend@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "serving engine for retrieval-augmented generation that reuses chunks' KV")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL runtime package)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
foreach(script conffiles postinst prerm postrm)
  list(APPEND CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/deploy/debian/${script})
endforeach()
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
