/*
 * job_cpp.cc: a C++ job: communicators, buffers and layers behind templates, namespaces, a virtual call and a lambda.
 *
 * What is tested is what a person reads in the verdict: demangled names of nested templates, at the line where NCCL was called.
 */
#include "tests/jobs/plan.h"

#include <cuda_runtime.h>
#include <fstream>
#include <functional>
#include <memory>
#include <nccl.h>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace training
{

static void check(ncclResult_t result, const char *what)
{
    if (result != ncclSuccess) {
        throw std::runtime_error(std::string(what) + ": " + ncclGetErrorString(result));
    }
}

template <typename T> struct datatype;
template <> struct datatype<float> {
    static constexpr ncclDataType_t value = ncclFloat32;
};

class reducer
{
  public:
    virtual ~reducer() = default;
    virtual float operator()(size_t count, float value) = 0;
};

template <typename T> class communicator : public reducer
{
  public:
    explicit communicator(const struct plan &plan)
    {
        ncclUniqueId id = meet(plan);
        if (cudaStreamCreate(&stream_) != cudaSuccess) {
            throw std::runtime_error("no stream");
        }
        check(ncclCommInitRank(&comm_, plan.size, id, plan.rank), "ncclCommInitRank");
    }
    ~communicator() override
    {
        ncclCommDestroy(comm_);
        cudaStreamDestroy(stream_);
    }

    /* Reduces one layer and gives the sum of its elements. */
    template <int Operator> T reduce_layer(std::vector<T> &values)
    {
        std::vector<T> result(values.size());
        check(ncclAllReduce(values.data(), result.data(), values.size(), datatype<T>::value,
                            static_cast<ncclRedOp_t>(Operator), comm_, stream_),
              "ncclAllReduce");
        if (cudaStreamSynchronize(stream_) != cudaSuccess) {
            throw std::runtime_error("the stream failed");
        }
        return std::accumulate(result.begin(), result.end(), T{});
    }

    float operator()(size_t count, float value) override
    {
        std::vector<T> values(count, static_cast<T>(value));
        return reduce_layer<ncclSum>(values);
    }

  private:
    static ncclUniqueId meet(const struct plan &plan)
    {
        ncclUniqueId id;
        std::string path = std::string(getenv("JOB_DIR")) + "/id";
        if (plan.rank == 0) {
            check(ncclGetUniqueId(&id), "ncclGetUniqueId");
            std::ofstream(path + ".tmp", std::ios::binary).write(id.internal, sizeof(id.internal));
            rename((path + ".tmp").c_str(), path.c_str());
        }
        while (!std::ifstream(path, std::ios::binary).read(id.internal, sizeof(id.internal))) {
            usleep(5000);
        }
        return id;
    }

    ncclComm_t comm_ = nullptr;
    cudaStream_t stream_ = nullptr;
};

static float step(reducer &reduce, const struct plan &plan, int number)
{
    float total = 0;
    std::function<void(int)> layer = [&](int at) {
        size_t count = plan_layer[at];
        if (at == 1 && plan_mistake(&plan, number, "skip")) {
            return;
        }
        if (at == 1 && plan_mistake(&plan, number, "size")) {
            count -= 8;
        }
        if (at == 1 && plan_mistake(&plan, number, "extra")) {
            reduce(40, 1);
        }
        total += reduce(count, static_cast<float>(plan.rank + number + at));
    };
    for (int at = 0; at < PLAN_LAYERS; at++) {
        layer(at);
    }
    return total;
}

} // namespace training

int main()
try {
    struct plan plan = {};
    if (!getenv("RANK") || !getenv("WORLD_SIZE") || !getenv("JOB_DIR")) {
        throw std::runtime_error("RANK, WORLD_SIZE and JOB_DIR say which rank of what this is");
    }
    plan.rank = atoi(getenv("RANK"));
    plan.size = atoi(getenv("WORLD_SIZE"));
    plan_begin(&plan);
    std::unique_ptr<training::reducer> reduce = std::make_unique<training::communicator<float>>(plan);
    float total = 0;
    for (int step = 0; step < PLAN_STEPS; step++) {
        if (step == 2 && (plan_forked_child(0) != 0 || plan_forked_child(1) != 0)) {
            throw std::runtime_error("a forked child failed");
        }
        total += training::step(*reduce, plan, step);
        if (plan.rank == 0) {
            printf("step %d total %.1f\n", step, static_cast<double>(total));
            fflush(stdout);
        }
    }
    return 0;
} catch (const std::exception &e) {
    fprintf(stderr, "job: %s\n", e.what());
    return 1;
}
