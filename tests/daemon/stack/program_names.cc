/* program_names.cc: C++ names, a template, an inlined function, a frame in a lambda; waits for ever in all of them. */
#include <cstdio>
#include <thread>
#include <unistd.h>

namespace job {
volatile int one = 1;

template <class T> struct Layer {
    __attribute__((noinline)) int forward(T x)
    {
        ::pause();
        return static_cast<int>(x) + one;
    }
};

static inline __attribute__((always_inline)) int inlined_step(Layer<double> &layer)
{
    return layer.forward(1.5) + one;
}

__attribute__((noinline)) int train(Layer<double> &layer)
{
    return inlined_step(layer) + one;
}
} // namespace job

int main()
{
    job::Layer<double> layer;
    std::thread other([&] { job::train(layer); });
    std::puts("ready");
    std::fflush(stdout);
    job::train(layer);
    other.join();
}
