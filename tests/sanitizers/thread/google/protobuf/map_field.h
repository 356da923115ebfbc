// Protobuf's own header as its library was built. With ThreadSanitizer it would give fields that are maps two
// members more, and Debian's libprotobuf, built without, would look for all that follow at the wrong place.
// The tsan preset finds this file before the system's.
#pragma once

// What it includes may know of ThreadSanitizer.
#include <google/protobuf/arena.h>
#include <google/protobuf/map.h>
#include <google/protobuf/message.h>

#include <atomic>
#include <functional>
#include <mutex>

#pragma push_macro("__SANITIZE_THREAD__")
#undef __SANITIZE_THREAD__
#include_next <google/protobuf/map_field.h>
#pragma pop_macro("__SANITIZE_THREAD__")
