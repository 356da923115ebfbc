// Reading JSON from outside twice: first its events, against limits, then its values.
//
// The library can also do both at once, by a callback, which for every object that ends looks through all
// members of the one around it: a body of 300 KB took seconds, a file with 100,000 objects minutes.
#pragma once

#include <cstddef>
#include <string>

namespace kvblend {

/// The base of parsers that check limits, for nlohmann::json::sax_parse: an event that returns false ends the
/// reading. Objects and arrays are handled alike, and so are all values without members. Json:
/// nlohmann::json, which this header does not include.
template <class Json>
class JsonEvents : public Json::json_sax_t {
 public:
  bool null() final { return Value(); }
  bool boolean(bool) final { return Value(); }
  bool number_integer(typename Json::number_integer_t) final { return Value(); }
  bool number_unsigned(typename Json::number_unsigned_t) final { return Value(); }
  bool number_float(typename Json::number_float_t, const std::string&) final { return Value(); }
  bool string(std::string&) final { return Value(); }
  bool binary(typename Json::binary_t&) final { return Value(); }
  bool start_object(size_t) final { return Open(); }
  bool end_object() final { return Close(); }
  bool start_array(size_t) final { return Open(); }
  bool end_array() final { return Close(); }
  bool key(std::string& name) final { return Key(name); }

 private:
  virtual bool Value() = 0;
  virtual bool Open() = 0;
  virtual bool Close() = 0;
  virtual bool Key(const std::string& name) = 0;
};

}  // namespace kvblend
