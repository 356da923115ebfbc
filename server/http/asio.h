// Boost.Asio for this room's sources: compiled once, in asio.cc, which halves what each of the others takes.
#pragma once

#include "absl/base/config.h"

#ifndef BOOST_ASIO_SEPARATE_COMPILATION
#define BOOST_ASIO_SEPARATE_COMPILATION
#endif

// ThreadSanitizer does not know fences; strands and mutexes order what is shared.
#if defined(ABSL_HAVE_THREAD_SANITIZER) && !defined(BOOST_ASIO_DISABLE_FENCED_BLOCK)
#define BOOST_ASIO_DISABLE_FENCED_BLOCK
#endif

#include <boost/asio/buffer.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>

namespace kvblend::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using AsioError = boost::system::error_code;

}  // namespace kvblend::server
