/*
 * user_object.c: user objects: a pointer with a destructor and a count, that graphs keep alive; NCCL ties what a
 * captured call needs to the graph in this way. As with the vendor's runtime, destructors run on a separate thread some
 * time after the last reference was given up, and may not make CUDA calls. Running them at the place where the
 * reference is given up was rejected: programs could then rely on an order that CUDA does not promise.
 */
#include "hostnccl/cuda/graph.h"

#include <signal.h>
#include <stdlib.h>

struct hostcuda_user_object {
    struct hostcuda_handle handle;
    void *pointer;
    cudaHostFn_t destroy;
    unsigned int count; /* guarded by hostcuda_graph_lock */
    struct hostcuda_user_object *next;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct hostcuda_user_object *head, **tail;
    bool is_running;
} dying = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .tail = &dying.head};

static void *destroyer(void *argument)
{
    (void)argument;
    hostcuda_self()->is_worker = true;
    pthread_mutex_lock(&dying.lock);
    for (;;) {
        struct hostcuda_user_object *object = dying.head;
        if (!object) {
            pthread_cond_wait(&dying.work, &dying.lock);
            continue;
        }
        dying.head = object->next;
        if (!dying.head) {
            dying.tail = &dying.head;
        }
        pthread_mutex_unlock(&dying.lock);
        object->destroy(object->pointer);
        free(object);
        pthread_mutex_lock(&dying.lock);
    }
    return NULL;
}

/*
 * Starts the destructors' thread, with dying.lock held. Where no thread can be started, the destructors wait for the
 * next attempt.
 */
static void start_destroyer(void)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t before;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    hostcuda_block_signals(&before);
    dying.is_running = !pthread_create(&thread, &attr, destroyer, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
}

static void object_release(struct hostcuda_handle *handle)
{
    struct hostcuda_user_object *object = (struct hostcuda_user_object *)handle;
    pthread_mutex_lock(&dying.lock);
    object->next = NULL;
    *dying.tail = object;
    dying.tail = &object->next;
    if (!dying.is_running) {
        start_destroyer();
    }
    pthread_cond_signal(&dying.work);
    pthread_mutex_unlock(&dying.lock);
}

struct hostcuda_user_object *hostcuda_user_object_of(cudaUserObject_t value)
{
    struct hostcuda_handle *found = hostcuda_handle_get(HOSTCUDA_USER_OBJECT, value);
    hostcuda_handle_put(found); /* forgotten only with the lock of graphs held */
    return (struct hostcuda_user_object *)found;
}

void hostcuda_user_object_retain(struct hostcuda_user_object *object, unsigned int count)
{
    object->count += count;
}

bool hostcuda_user_object_release(struct hostcuda_user_object *object, unsigned int count)
{
    if (count > object->count) {
        return false;
    }
    object->count -= count;
    if (!object->count) {
        hostcuda_handle_put(hostcuda_handle_remove(HOSTCUDA_USER_OBJECT, object));
    }
    return true;
}

HOSTCUDA_EXPORT cudaError_t cudaUserObjectCreate(cudaUserObject_t *out, void *pointer, cudaHostFn_t destroy,
                                                 unsigned int count, unsigned int flags)
{
    cudaError_t error = hostcuda_enter_work();
    /* The only flag says that nothing waits for the destructor; the vendor requires it. */
    if (!error && (!out || !destroy || !count || count > INT32_MAX || flags != cudaUserObjectNoDestructorSync)) {
        error = cudaErrorInvalidValue;
    }
    if (error) {
        return hostcuda_leave(error);
    }
    struct hostcuda_user_object *object = calloc(1, sizeof(*object));
    if (!object) {
        return hostcuda_leave(cudaErrorMemoryAllocation);
    }
    atomic_init(&object->handle.refs, 1);
    object->handle.release = object_release;
    object->pointer = pointer;
    object->destroy = destroy;
    object->count = count;
    if (hostcuda_handle_add(HOSTCUDA_USER_OBJECT, &object->handle)) {
        free(object);
        return hostcuda_leave(cudaErrorMemoryAllocation);
    }
    *out = (cudaUserObject_t)object;
    return cudaSuccess;
}

HOSTCUDA_EXPORT cudaError_t cudaUserObjectRetain(cudaUserObject_t value, unsigned int count)
{
    cudaError_t error = hostcuda_enter_work();
    pthread_mutex_lock(&hostcuda_graph_lock);
    struct hostcuda_user_object *object = error ? NULL : hostcuda_user_object_of(value);
    if (object && count && count <= INT32_MAX - object->count) {
        hostcuda_user_object_retain(object, count);
    } else {
        error = error ? error : cudaErrorInvalidValue;
    }
    pthread_mutex_unlock(&hostcuda_graph_lock);
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaUserObjectRelease(cudaUserObject_t value, unsigned int count)
{
    cudaError_t error = hostcuda_enter_work();
    pthread_mutex_lock(&hostcuda_graph_lock);
    struct hostcuda_user_object *object = error ? NULL : hostcuda_user_object_of(value);
    if (!object || !count || !hostcuda_user_object_release(object, count)) {
        error = error ? error : cudaErrorInvalidValue;
    }
    pthread_mutex_unlock(&hostcuda_graph_lock);
    return hostcuda_leave(error);
}
