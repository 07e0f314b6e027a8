// The C++ side of program.c: typed allocation, default arguments, and objects that outlive main.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

static void check(cudaError_t error)
{
    if (error != cudaSuccess) {
        throw std::runtime_error(std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error));
    }
}

class stream
{
  public:
    stream()
    {
        check(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking));
    }
    ~stream()
    {
        cudaStreamDestroy(handle);
    }
    stream(const stream &) = delete;
    stream &operator=(const stream &) = delete;
    cudaStream_t handle = nullptr;
};

// Torn down by the C library after main, with work in it that nobody waited for.
static stream &forgotten()
{
    static stream one;
    return one;
}

static void doze(void *)
{
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

static int total(int device, int count)
{
    check(cudaSetDevice(device));
    std::vector<int> ones(count, 1), back(count);
    int *memory = nullptr, *pinned = nullptr, *managed = nullptr;
    check(cudaMalloc(&memory, count * sizeof(int)));
    check(cudaMallocHost(&pinned, count * sizeof(int)));
    check(cudaMallocManaged(&managed, count * sizeof(int)));
    check(cudaMemcpy(memory, ones.data(), count * sizeof(int), cudaMemcpyHostToDevice));
    check(cudaMemcpyAsync(managed, memory, count * sizeof(int), cudaMemcpyDeviceToDevice));
    cudaEvent_t event;
    check(cudaEventCreate(&event, cudaEventDisableTiming));
    check(cudaEventRecord(event));
    stream other;
    check(cudaStreamWaitEvent(other.handle, event));
    check(cudaMemcpyAsync(pinned, managed, count * sizeof(int), cudaMemcpyDefault, other.handle));
    check(cudaStreamSynchronize(other.handle));
    check(cudaEventDestroy(event));
    int sum = 0;
    for (int i = 0; i < count; i++) {
        sum += pinned[i];
    }
    check(cudaFree(memory));
    check(cudaFree(managed));
    check(cudaFreeHost(pinned));
    return sum;
}

int main()
{
    int devices = 0;
    check(cudaGetDeviceCount(&devices));
    std::vector<int> sums(devices);
    std::vector<std::thread> threads;
    for (int d = 0; d < devices; d++) {
        threads.emplace_back([&sums, d] { sums[d] = total(d, 1000 + d); });
    }
    for (auto &thread : threads) {
        thread.join();
    }
    for (int d = 0; d < devices; d++) {
        if (sums[d] != 1000 + d) {
            std::fprintf(stderr, "device %d: %d\n", d, sums[d]);
            return 1;
        }
    }
    for (int i = 0; i < 5; i++) {
        check(cudaLaunchHostFunc(forgotten().handle, doze, nullptr));
    }
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0));
    std::printf("%s\n", properties.name);
    return std::strcmp(properties.name, "hostcuda") != 0;
}
