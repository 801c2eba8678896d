// libtorch's c10d, for `aten/c10d.rs`: a store where processes meet, and Gloo, by which they exchange bytes. Functions return what
// those of shim.cpp do.

#include "attempt.h"
#include "part.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/headeronly/version.h>

static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 11,
              "compare ProcessGroupGloo, below, with this libtorch's ProcessGroupGloo.hpp, then name its version here");

namespace gloo::transport {
class Device;
}

namespace c10d {
// As ProcessGroupGloo.hpp declares what is used of it. That header asks for gloo's own, which no package of libtorch has.
class ProcessGroupGloo : public Backend {
  public:
    struct Options : public Backend::Options {
        explicit Options(std::chrono::milliseconds timeout);
        std::vector<std::shared_ptr<::gloo::transport::Device>> devices;
        int threads;
    };
    static std::shared_ptr<::gloo::transport::Device> createDeviceForHostname(const std::string &address, bool lazy);
    ProcessGroupGloo(const c10::intrusive_ptr<Store> &store, int rank, int size, c10::intrusive_ptr<Options> options);
    ~ProcessGroupGloo() override;

  private:
    char rest_[4096]; // More than its members take: it is made here, and only libtorch looks at them.
};
} // namespace c10d

namespace {

using Store = c10::intrusive_ptr<c10d::Store>;
using Gloo = c10::intrusive_ptr<c10d::Backend>;

std::vector<at::Tensor> bytes(const Part &part) { return {at::from_blob(part.memory, {part.bytes}, at::kByte)}; }

} // namespace

extern "C" {

// listener: a socket that listens, where the store is to be served from, else -1; keys begin with `prefix`
char *ft_store_open(Store **store, const char *host, uint16_t port, int listener, const char *prefix, int64_t milliseconds) {
    return attempt([&] {
        c10d::TCPStoreOptions options;
        options.port = port, options.isServer = listener >= 0, options.waitWorkers = false;
        if (options.isServer) options.masterListenFd = listener;
        options.timeout = std::chrono::milliseconds(milliseconds);
        *store = new Store(c10::make_intrusive<c10d::PrefixStore>(prefix, c10::make_intrusive<c10d::TCPStore>(host, options)));
    });
}

// value: what the key has now, which is `text` where no other came first
char *ft_store_claim(const Store *store, const char *key, const char *text, char **value) {
    return attempt([&] { *value = strdup((*store)->compareSet(std::string(key), std::string(), std::string(text)).c_str()); });
}

// value: waited for
char *ft_store_get(const Store *store, const char *key, char **value) {
    return attempt([&] { *value = strdup((*store)->get_to_str(key).c_str()); });
}

char *ft_store_has(const Store *store, const char *key, bool *has) {
    return attempt([&] { *has = (*store)->check({key}); });
}

// sum: after `number` was added
char *ft_store_add(const Store *store, const char *key, int64_t number, int64_t *sum) {
    return attempt([&] { *sum = (*store)->add(key, number); });
}

// address: of this machine, by which the others reach it; each exchange waits `patience` for the others
char *ft_gloo_open(Gloo **gloo, const Store *store, const char *address, int rank, int size, int64_t milliseconds, int64_t patience) {
    return attempt([&] {
        auto options = c10::make_intrusive<c10d::ProcessGroupGloo::Options>(std::chrono::milliseconds(milliseconds));
        options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address, false));
        auto opened = c10::make_intrusive<c10d::ProcessGroupGloo>(*store, rank, size, std::move(options));
        opened->setTimeout(std::chrono::milliseconds(patience));
        *gloo = new Gloo(std::move(opened));
    });
}

// The n-th part for a rank is the n-th that arrives there from this one. No memory is copied on the way to the sockets.
char *ft_gloo_exchange(const Gloo *gloo, const Part *sent, size_t sent_count, const Part *arrived, size_t arrived_count) {
    return attempt([&] {
        std::vector<c10::intrusive_ptr<c10d::Work>> works;
        for (auto part = arrived; part != arrived + arrived_count; ++part) {
            auto place = bytes(*part);
            works.push_back((*gloo)->recv(place, part->rank, 0));
        }
        for (auto part = sent; part != sent + sent_count; ++part) {
            auto given = bytes(*part);
            works.push_back((*gloo)->send(given, part->rank, 0));
        }
        // Left to itself, a single part waits for as long as the connecting may take.
        const auto patience = (*gloo)->getBackendOptions()->timeout;
        for (auto &work : works) work->wait(patience);
    });
}

// Each gets the sum of the numbers of all, in the order that Gloo takes.
char *ft_gloo_sum(const Gloo *gloo, float *numbers, int64_t count) {
    return attempt([&] {
        std::vector<at::Tensor> tensors{at::from_blob(numbers, {count}, at::kFloat)};
        (*gloo)->allreduce(tensors)->wait();
    });
}
}
