// NCCL, NVIDIA's exchanges between GPUs, and the streams of threads that use it: for `aten/nccl.rs`. Functions return what those of
// shim.cpp do. NCCL's library lies beside libtorch's CUDA part, and is loaded when it is used: the program starts without it. Its
// functions are those of `nccl.h` since version 2.7, in plain C.

#include "attempt.h"
#include "part.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <dlfcn.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace {

// ncclUniqueId: where the processes of a group meet.
struct Meeting {
    char bytes[128];
};

// ncclComm_t, cudaStream_t and ncclResult_t.
using Communicator = void *;
using CudaStream = void *;
using Outcome = int;

// ncclDataType_t and ncclRedOp_t.
constexpr int BYTES = 1, FLOATS = 7, SUM = 0;

struct Library {
    Outcome (*meeting)(Meeting *);
    Outcome (*open)(Communicator *, int size, Meeting, int rank);
    Outcome (*begin)();
    Outcome (*end)();
    Outcome (*send)(const void *, size_t count, int type, int rank, Communicator, CudaStream);
    Outcome (*receive)(void *, size_t count, int type, int rank, Communicator, CudaStream);
    Outcome (*sum)(const void *, void *, size_t count, int type, int operation, Communicator, CudaStream);
    Outcome (*state)(Communicator, Outcome *);
    Outcome (*abort)(Communicator);
    const char *(*words)(Outcome);

    Library() {
        const auto library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
        if (!library) throw std::runtime_error(dlerror());
        find(library, "ncclGetUniqueId", meeting), find(library, "ncclCommInitRank", open);
        find(library, "ncclGroupStart", begin), find(library, "ncclGroupEnd", end);
        find(library, "ncclSend", send), find(library, "ncclRecv", receive), find(library, "ncclAllReduce", sum);
        find(library, "ncclCommGetAsyncError", state), find(library, "ncclCommAbort", abort);
        find(library, "ncclGetErrorString", words);
    }

    template <typename Function> static void find(void *library, const char *name, Function &function) {
        function = reinterpret_cast<Function>(dlsym(library, name));
        if (!function) throw std::runtime_error(dlerror());
    }

    void check(Outcome outcome) const {
        if (outcome != 0) throw std::runtime_error(std::string("NCCL: ") + words(outcome));
    }
};

const Library &library() {
    static const Library library;
    return library;
}

c10::Device gpu(int index) { return c10::Device(c10::DeviceType::CUDA, index); }

c10::impl::VirtualGuardImpl streams() { return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA); }

// Of the thread that exchanges, beside the stream that computes, of the one device that there is. (One for each thread would keep
// memory of its own in libtorch's cache.)
c10::Stream exchanging(c10::Device device) {
    static const c10::Stream stream = streams().getStreamFromGlobalPool(device);
    return stream;
}

// This process among the GPUs of all.
struct Nccl {
    c10::Device device;
    std::chrono::milliseconds patience;
    // Null after a failure.
    mutable Communicator communicator = nullptr;

    // Asks for some work on this thread's stream, and waits until it is done. A link that breaks is told here alone; one to a
    // process that hangs does not break. (The first exchange with a process also connects to it, which NCCL waits for by itself.)
    template <typename Work> void carry_out(Work work) const {
        if (!communicator) throw std::runtime_error("an earlier exchange has failed");
        const c10::DeviceGuard guard(device);
        const auto stream = streams().getStream(device);
        const auto end = std::chrono::steady_clock::now() + patience;
        try {
            work(stream.native_handle());
            while (!stream.query()) {
                if (std::chrono::steady_clock::now() > end) throw std::runtime_error("another process has not answered for too long");
                Outcome state = 0;
                library().check(library().state(communicator, &state));
                library().check(state);
                std::this_thread::sleep_for(std::chrono::microseconds(20));
            }
        } catch (...) {
            // Or its kernel would go on in memory that is given back, and the process could not end.
            library().abort(std::exchange(communicator, nullptr));
            throw;
        }
    }
};

} // namespace

extern "C" {

// meeting: of a new group, which one of its processes makes for all
char *ft_nccl_meeting(Meeting *meeting) {
    return attempt([&] { library().check(library().meeting(meeting)); });
}

// Waits until all have come; milliseconds: for which an exchange waits for the others.
char *ft_nccl_open(Nccl **nccl, int device, int rank, int size, const Meeting *meeting, int64_t milliseconds) {
    return attempt([&] {
        auto made = std::make_unique<Nccl>(Nccl{gpu(device), std::chrono::milliseconds(milliseconds)});
        const c10::DeviceGuard guard(made->device);
        library().check(library().open(&made->communicator, size, *meeting, rank));
        *nccl = made.release();
    });
}

// The n-th part for a rank is the n-th that arrives there from this one; memory of the GPU.
char *ft_nccl_exchange(const Nccl *nccl, const Part *sent, size_t sent_count, const Part *arrived, size_t arrived_count) {
    return attempt([&] {
        nccl->carry_out([&](CudaStream stream) {
            const auto &library_is = library();
            library_is.check(library_is.begin());
            Outcome first = 0;
            const auto note = [&](Outcome outcome) { first = first ? first : outcome; };
            for (auto part = sent; part != sent + sent_count; ++part) {
                note(library_is.send(part->memory, part->bytes, BYTES, part->rank, nccl->communicator, stream));
            }
            for (auto part = arrived; part != arrived + arrived_count; ++part) {
                note(library_is.receive(part->memory, part->bytes, BYTES, part->rank, nccl->communicator, stream));
            }
            note(library_is.end());
            library_is.check(first);
        });
    });
}

// Each gets the sum of the numbers of all, in the order that NCCL takes.
char *ft_nccl_sum(const Nccl *nccl, float *numbers, int64_t count) {
    return attempt([&] {
        nccl->carry_out([&](CudaStream stream) {
            library().check(library().sum(numbers, numbers, count, FLOATS, SUM, nccl->communicator, stream));
        });
    });
}

// What this thread asks of the GPU goes to a stream of its own from here on. (Its device is set first, or c10 would go back to the
// first GPU after each event, and take memory there.)
char *ft_stream_enter(int device) {
    return attempt([&] {
        streams().setDevice(gpu(device));
        streams().exchangeStream(exchanging(gpu(device)));
    });
}

// Waits until all is done that this thread has asked of the GPU.
char *ft_stream_settle(int device) {
    return attempt([&] { streams().getStream(gpu(device)).synchronize(); });
}

// moment: when all is done that this thread has asked of the GPU until now
char *ft_moment_now(c10::Event **moment, int device) {
    return attempt([&] {
        const c10::DeviceGuard guard(gpu(device));
        auto made = std::make_unique<c10::Event>(c10::DeviceType::CUDA);
        made->record(streams().getStream(gpu(device)));
        *moment = made.release();
    });
}

// What this thread asks of the GPU from here on waits for that moment.
char *ft_moment_follow(const c10::Event *moment, int device) {
    return attempt([&] { moment->block(streams().getStream(gpu(device))); });
}

void ft_moment_free(c10::Event *moment) { delete moment; }
}
