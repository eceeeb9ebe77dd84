#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace regrow {

// "k has 3 rows, the tree has 4 tokens": all arguments, one after the other.
template <class... Parts>
std::string message(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

}  // namespace regrow

// Throws std::invalid_argument (ValueError in Python) with the values and what would be right.
#define CHECK(condition, ...)                                                      \
  do {                                                                             \
    if (!(condition)) throw std::invalid_argument(::regrow::message(__VA_ARGS__)); \
  } while (false)
