#pragma once

#include "tree/rectangle.h"

namespace regrow {

// What tells a plan of one tree or query_index from that of another. Depths matter to a window only.
int32_t checksum_of_words(const int32_t* plan, int64_t num_words);
int32_t checksum_of_tree(const Rectangle& rectangle);
int32_t checksum_of_queries(const Rectangle& rectangle);

}  // namespace regrow
