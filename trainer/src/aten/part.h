#pragma once

#include <cstdint>

// Memory that a rank is given, or gives.
struct Part {
    int64_t rank;
    void *memory;
    int64_t bytes;
};
