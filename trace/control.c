/*
 * control.c: makes, opens, checks and changes the control page.
 *
 * Whoever needs the page first makes it, whole, then links it to the final name; link() fails when the name exists, so
 * the first maker wins and the others map what it made. Making it in place was rejected: another process could map a
 * page whose head is not written yet.
 */
#include "trace/control.h"
#include "trace/err.h"
#include "trace/file.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int map_page(int fd, struct roll_control **out)
{
    void *p = mmap(NULL, ROLL_CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        return roll_err_from_errno(errno);
    }
    *out = p;
    return ROLL_OK;
}

static void set_policy(struct roll_control *c, enum roll_policy policy)
{
    atomic_store_explicit(&c->auto_local, policy == ROLL_POLICY_AUTO ? roll_remedy_all() : 0, memory_order_relaxed);
    atomic_store_explicit(&c->policy, (uint32_t)policy, memory_order_relaxed);
}

static int open_existing(const char *path, struct roll_control **out)
{
    uint64_t bytes = 0;
    int fd = roll_file_open(path, true, &bytes);
    if (fd < 0) {
        return fd;
    }
    struct roll_control *c = NULL;
    int err = bytes < ROLL_CONTROL_BYTES ? ROLL_E_SHORT : map_page(fd, &c);
    close(fd);
    if (err < 0) {
        return err;
    }
    err = roll_control_check(c, ROLL_CONTROL_BYTES);
    if (err < 0) {
        roll_control_close(&c);
        return err;
    }
    *out = c;
    return ROLL_OK;
}

static int make(const char *path, enum roll_policy policy)
{
    struct roll_new_file file;
    int err = roll_file_make(path, ROLL_CONTROL_BYTES, &file);
    if (err < 0) {
        return err;
    }
    struct roll_control *c = NULL;
    err = map_page(file.fd, &c);
    if (err < 0) {
        goto out;
    }
    memcpy(c->magic, ROLL_CONTROL_MAGIC, sizeof(c->magic));
    c->version = ROLL_CONTROL_VERSION;
    c->oldest = ROLL_CONTROL_VERSION;
    c->bytes = ROLL_CONTROL_BYTES;
    set_policy(c, policy);
    err = roll_file_publish(&file, path, false);
    err = err == ROLL_E_BUSY ? ROLL_OK : err; /* somebody else was first */
out:
    roll_file_finish(&file);
    roll_control_close(&c);
    return err;
}

int roll_control_open(const char *path, bool create, enum roll_policy policy, struct roll_control **out)
{
    *out = NULL;
    int err = open_existing(path, out);
    if (err != ROLL_E_NOTFOUND || !create) {
        return err;
    }
    err = make(path, policy);
    return err < 0 ? err : open_existing(path, out);
}

void roll_control_close(struct roll_control **control)
{
    if (*control != NULL) {
        munmap(*control, ROLL_CONTROL_BYTES);
        *control = NULL;
    }
}

int roll_control_check(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    if (bytes >= 8 && memcmp(p, ROLL_CONTROL_MAGIC, 8) != 0) {
        return ROLL_E_MAGIC;
    }
    if (bytes < ROLL_CONTROL_BYTES) {
        return ROLL_E_SHORT;
    }
    uint16_t version;
    uint16_t oldest;
    uint32_t size;
    uint32_t policy;
    memcpy(&version, p + offsetof(struct roll_control, version), sizeof(version));
    memcpy(&oldest, p + offsetof(struct roll_control, oldest), sizeof(oldest));
    memcpy(&size, p + offsetof(struct roll_control, bytes), sizeof(size));
    memcpy(&policy, p + offsetof(struct roll_control, policy), sizeof(policy));
    if (version < ROLL_CONTROL_VERSION || oldest > ROLL_CONTROL_VERSION) {
        return ROLL_E_VERSION;
    }
    if (size != ROLL_CONTROL_BYTES) {
        return ROLL_E_SIZE;
    }
    return oldest >= 1 && policy <= ROLL_POLICY_AUTO ? ROLL_OK : ROLL_E_CORRUPT;
}

static void change_pair(_Atomic uint32_t *on, _Atomic uint32_t *off, uint32_t action, uint32_t mask)
{
    uint32_t new_on = atomic_load_explicit(on, memory_order_relaxed) & ~mask;
    uint32_t new_off = atomic_load_explicit(off, memory_order_relaxed) & ~mask;
    atomic_store_explicit(on, action == ROLL_ACTION_ON ? new_on | mask : new_on, memory_order_relaxed);
    atomic_store_explicit(off, action == ROLL_ACTION_OFF ? new_off | mask : new_off, memory_order_relaxed);
}

static int change_group(struct roll_control *c, const struct roll_control_change *change)
{
    unsigned slot = ROLL_CONTROL_GROUPS;
    for (unsigned i = 0; i < ROLL_CONTROL_GROUPS; i++) {
        uint64_t key = atomic_load_explicit(&c->group[i].comm_key, memory_order_relaxed);
        if (key == change->comm_key) {
            slot = i;
            break;
        }
        if (key == 0 && slot == ROLL_CONTROL_GROUPS) {
            slot = i;
        }
    }
    bool exists = slot < ROLL_CONTROL_GROUPS &&
                  atomic_load_explicit(&c->group[slot].comm_key, memory_order_relaxed) == change->comm_key;
    if (!exists && change->action == ROLL_ACTION_CLEAR) {
        return ROLL_OK;
    }
    if (slot == ROLL_CONTROL_GROUPS) {
        return ROLL_E_LIMIT;
    }
    change_pair(&c->group[slot].on, &c->group[slot].off, change->action, change->mask);
    bool used = atomic_load_explicit(&c->group[slot].on, memory_order_relaxed) != 0 ||
                atomic_load_explicit(&c->group[slot].off, memory_order_relaxed) != 0;
    atomic_store_explicit(&c->group[slot].comm_key, used ? change->comm_key : 0, memory_order_release);
    return ROLL_OK;
}

static int change_job(struct roll_control *c, const struct roll_control_change *change)
{
    if (change->action == ROLL_ACTION_POLICY) {
        if (change->mask > ROLL_POLICY_AUTO) {
            return ROLL_E_ARG;
        }
        set_policy(c, (enum roll_policy)change->mask);
        atomic_store_explicit(&c->policy_told, 1, memory_order_relaxed);
        return ROLL_OK;
    }
    uint32_t may = atomic_load_explicit(&c->policy, memory_order_relaxed) == ROLL_POLICY_AUTO ? roll_remedy_all() : 0;
    uint32_t alone = atomic_load_explicit(&c->auto_local, memory_order_relaxed) & ~change->mask;
    alone |= change->action == ROLL_ACTION_OFF ? 0 : may & change->mask;
    if (change->action == ROLL_ACTION_ON) {
        atomic_fetch_or_explicit(&c->on, change->mask, memory_order_relaxed);
    } else {
        atomic_fetch_and_explicit(&c->on, ~change->mask, memory_order_relaxed);
    }
    atomic_store_explicit(&c->auto_local, alone, memory_order_relaxed);
    return ROLL_OK;
}

int roll_control_apply(struct roll_control *control, const struct roll_control_change *change)
{
    int err = ROLL_OK;
    if (change->action > ROLL_ACTION_POLICY ||
        (change->action == ROLL_ACTION_POLICY && change->level != ROLL_LEVEL_JOB)) {
        return ROLL_E_ARG;
    }
    if (change->level == ROLL_LEVEL_JOB) {
        err = change_job(control, change);
    } else if (change->level == ROLL_LEVEL_GROUP && change->comm_key != 0) {
        err = change_group(control, change);
    } else if (change->level == ROLL_LEVEL_LAYER && change->layer < ROLL_CONTROL_LAYERS) {
        change_pair(&control->layer[change->layer].on, &control->layer[change->layer].off, change->action,
                    change->mask);
    } else {
        err = ROLL_E_ARG;
    }
    if (err == ROLL_OK) {
        atomic_fetch_add_explicit(&control->generation, 1, memory_order_relaxed);
    }
    return err;
}
