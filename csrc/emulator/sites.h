#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "platform/emulated.h"

namespace regrow::emulator {

inline bool same_text(const char* a, const char* b) { return a == b || !std::strcmp(a, b); }

// One place in the source. Instantiations of a template have objects of their own for it, so the objects tell nothing.
inline bool same_place(Site a, Site b) {
  return a.line() == b.line() && a.column() == b.column() && same_text(a.file_name(), b.file_name());
}

// "tile_matmul.cuh:41:5 sync_block": how reports and Options::skip call a synchronisation point.
inline std::string name_of(const char* what, Site site) {
  const std::string_view file = site.file_name();
  return std::string(file.substr(file.rfind('/') + 1)) + ":" + std::to_string(site.line()) + ":" +
         std::to_string(site.column()) + " " + what;
}

// A value for each thing done at a place in the source. A kernel has a dozen or two: a search in order finds them
// faster than a map of their names.
template <class T>
class BySite {
 public:
  struct Entry {
    const char* what;
    Site site;
    T value;
  };

  // Its value, made by `first` where the place is new.
  template <class First>
  T& at(const char* what, Site site, const First& first) {
    for (Entry& entry : entries_)
      if (same_place(entry.site, site) && same_text(entry.what, what)) return entry.value;
    entries_.push_back({what, site, first()});
    return entries_.back().value;
  }

  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
};

}  // namespace regrow::emulator
