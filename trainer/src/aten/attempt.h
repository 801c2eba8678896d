// How functions for Rust tell of an exception.
#pragma once

#include <cstring>
#include <exception>

// Null, or what went wrong as text that the caller frees.
template <typename Work> char *attempt(Work work) {
    try {
        work();
        return nullptr;
    } catch (const std::exception &error) {
        return strdup(error.what());
    }
}
