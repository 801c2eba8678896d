// Operators of libtorch that tch does not pass on, for `aten/mod.rs`. Each returns null, or what went wrong as text that the caller
// frees. Nothing here needs CUDA's headers: operators go through libtorch's dispatcher, and one build serves machines with and
// without a GPU.

#include "attempt.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <mutex>

using at::Tensor;

namespace {

// Beside the stream that computes, of the one device that there is.
c10::Stream way_home(c10::Device device) {
    static const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
    return stream;
}

c10::Stream way_out(c10::Device device) {
    static const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
    return stream;
}

c10::Stream computing(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

// What `first` was asked until now comes before what `then` is asked from now on.
void in_order(const c10::Stream &first, const c10::Stream &then) {
    c10::Event done(first.device_type());
    done.record(first);
    done.block(then);
}

#ifdef __linux__
extern "C" void *ft_allocate(size_t bytes);
extern "C" void ft_free(void *memory);

struct Arena final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        void *memory = ft_allocate(bytes);
        TORCH_CHECK_WITH(OutOfMemoryError, memory, "can't allocate memory: ", bytes, " bytes of a tensor");
        return {memory, memory, &ft_free, c10::DeviceType::CPU};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &ft_free; }
    void copy_data(void *to, const void *from, size_t bytes) const override { default_copy_data(to, from, bytes); }
} arena;
#endif

} // namespace

extern "C" {

#ifdef __linux__
// Tensors in main memory come from the arena from now on.
void ft_use_arena() { c10::SetCPUAllocator(&arena, 1); }
#endif

// gradients: of input, gain and shift
char *ft_layer_norm_backward(Tensor **gradients, const Tensor *dy, const Tensor *x, const Tensor *mean, const Tensor *reciprocal_deviation,
                             const Tensor *gain, const Tensor *shift) {
    return attempt([&] {
        auto [dx, dgain, dshift] =
            at::native_layer_norm_backward(*dy, *x, gain->sizes(), *mean, *reciprocal_deviation, *gain, *shift, {true, true, true});
        gradients[0] = new Tensor(dx), gradients[1] = new Tensor(dgain), gradients[2] = new Tensor(dshift);
    });
}

// results: output, log-sum-exp, and where the device's generator stood; rate: share of the weights that is dropped; seed: where it
// begins
char *ft_attention(Tensor **results, const Tensor *q, const Tensor *k, const Tensor *v, bool causal, double rate, uint64_t seed,
                   bool flash) {
    return attempt([&] {
        if (rate > 0) {
            auto generator = at::globalContext().defaultGenerator(q->device());
            const std::lock_guard<std::mutex> lock(generator.mutex());
            generator.set_current_seed(seed);
        }
        Tensor output, log_sum_exp, state, offset;
        if (flash) {
            auto all = at::_scaled_dot_product_flash_attention(*q, *k, *v, rate, causal);
            output = std::get<0>(all), log_sum_exp = std::get<1>(all), state = std::get<6>(all), offset = std::get<7>(all);
        } else {
            std::tie(output, log_sum_exp, state, offset) =
                at::_scaled_dot_product_efficient_attention(*q, *k, *v, std::nullopt, true, rate, causal);
        }
        results[0] = new Tensor(output), results[1] = new Tensor(log_sum_exp);
        results[2] = new Tensor(state), results[3] = new Tensor(offset);
    });
}

// gradients: of queries, keys and values; kept: what ft_attention gave
char *ft_attention_backward(Tensor **gradients, const Tensor *doutput, const Tensor *q, const Tensor *k, const Tensor *v,
                            const Tensor *const *kept, bool causal, double rate, bool flash) {
    return attempt([&] {
        Tensor dq, dk, dv;
        if (flash) {
            const auto rows = q->size(2), keys = k->size(2);
            std::tie(dq, dk, dv) = at::_scaled_dot_product_flash_attention_backward(
                *doutput, *q, *k, *v, *kept[0], *kept[1], Tensor(), Tensor(), rows, keys, rate, causal, *kept[2], *kept[3]);
        } else {
            Tensor dbias;
            std::tie(dq, dk, dv, dbias) = at::_scaled_dot_product_efficient_attention_backward(
                *doutput, *q, *k, *v, Tensor(), *kept[0], *kept[1], *kept[2], *kept[3], rate, {true, true, true, false}, causal);
        }
        gradients[0] = new Tensor(dq), gradients[1] = new Tensor(dk), gradients[2] = new Tensor(dv);
    });
}

// numbers: learning rate, beta 1, beta 2, weight decay, epsilon; step: how many updates this makes, a float on the device
char *ft_fused_adamw(const Tensor *parameter, const Tensor *gradient, const Tensor *first, const Tensor *second, const Tensor *step,
                     const double *numbers) {
    return attempt([&] {
        at::_fused_adamw_({*parameter}, {*gradient}, {*first}, {*second}, {}, {*step}, numbers[0], numbers[1], numbers[2], numbers[3],
                          numbers[4], false, false);
    });
}

// Copies to locked memory when the device has done what it was asked until now, and while it does what it is asked next.
char *ft_send_home(const Tensor *home, const Tensor *tensor) {
    return attempt([&] {
        const auto device = tensor->device();
        if (device.is_cpu()) {
            home->copy_(*tensor);
            return;
        }
        const auto way = way_home(device);
        in_order(computing(device), way);
        const c10::StreamGuard guard(way);
        home->copy_(*tensor, true);
        tensor->record_stream(way); // Or who computes could have its memory before it is read.
    });
}

// Waits until all that was sent is there.
char *ft_await_home(int device) {
    return attempt([&] { way_home(c10::Device(c10::DeviceType::CUDA, device)).synchronize(); });
}

// Copies from locked memory when the device has done what it was asked until now, and while it does what it is asked next.
char *ft_send_out(const Tensor *place, const Tensor *tensor) {
    return attempt([&] {
        const auto device = place->device();
        if (device.is_cpu()) {
            place->copy_(*tensor);
            return;
        }
        in_order(computing(device), way_out(device));
        const c10::StreamGuard guard(way_out(device));
        place->copy_(*tensor, true);
    });
}

// What the device is asked from now on waits for all that was sent out.
char *ft_await_arrival(int index) {
    return attempt([&] {
        const c10::Device device(c10::DeviceType::CUDA, index);
        in_order(way_out(device), computing(device));
    });
}

char *ft_set_precision(bool tf32, bool deterministic) {
    return attempt([&] {
        auto &context = at::globalContext();
        context.setAllowTF32CuBLAS(tf32);
        // By default cuBLAS may add up in half precision.
        context.setAllowFP16ReductionCuBLAS(false);
        context.setAllowBF16ReductionCuBLAS(false);
        context.setDeterministicAlgorithms(deterministic, false);
    });
}

// bytes: most that was allocated at once
char *ft_peak_memory(uint64_t *bytes, int device) {
    return attempt([&] {
        *bytes = c10::getDeviceAllocator(c10::DeviceType::CUDA)->getDeviceStats(device).allocated_bytes[0].peak;
    });
}

// bytes: what no process has taken
char *ft_free_memory(uint64_t *bytes, int device) {
    return attempt([&] { *bytes = c10::getDeviceAllocator(c10::DeviceType::CUDA)->getMemoryInfo(device).first; });
}
}
