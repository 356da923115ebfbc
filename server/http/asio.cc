#include "server/http/asio.h"

#include <boost/asio/impl/src.hpp>
