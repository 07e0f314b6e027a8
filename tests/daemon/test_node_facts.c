/*
 * test_node_facts.c: the facts that are read from a tree of files that looks like /sys, /proc and /dev, and from a
 * stand-in of NVML.
 */
#include "daemon/agent/node_facts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64], said[16384];
static struct roll_node node;

static void hear(void *ctx, enum roll_fact kind, const char *text)
{
    (void)ctx;
    size_t used = strlen(said);
    assert_true(strlen(text) < ROLL_NODE_TEXT);
    snprintf(said + used, sizeof(said) - used, "%s: %s\n", roll_fact_name(kind), text);
}

static int set_up(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "/tmp/roll_node.XXXXXX");
    assert_non_null(mkdtemp(root));
    node = (struct roll_node){.root = root, .tell = hear};
    said[0] = '\0';
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", root);
    return system(command);
}

static void put(const char *path, const char *text)
{
    char full[PATH_MAX];
    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        (void)mkdir(full, 0700);
        *p = '/';
    }
    FILE *f = fopen(full, "we");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void port(const char *device, const char *state, const char *downed, const char *symbols)
{
    char path[128];
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/state", device);
    put(path, state);
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/counters/link_downed", device);
    put(path, downed);
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/counters/symbol_error", device);
    put(path, symbols);
}

static void test_a_healthy_node_says_nothing(void **state)
{
    (void)state;
    port("mlx5_0", "4: ACTIVE\n", "3\n", "17\n");
    port("mlx5_1", "1: DOWN\n", "0\n", "0\n"); /* never used */
    put("/sys/class/net/lo/operstate", "unknown\n");
    put("/sys/class/net/eth0/device/uevent", "");
    put("/sys/class/net/eth0/operstate", "up\n");
    put("/sys/class/net/eth0/flags", "0x1003\n");
    put("/sys/class/net/eth0/carrier_down_count", "2\n");
    put("/sys/class/net/eth0/statistics/rx_errors", "5\n");
    put("/sys/class/net/eth1/device/uevent", "");
    put("/sys/class/net/eth1/operstate", "down\n");
    put("/sys/class/net/eth1/flags", "0x1003\n");
    put("/sys/class/net/eth1/carrier_down_count", "0\n");
    put("/sys/class/net/eth2/device/uevent", "");
    put("/sys/class/net/eth2/operstate", "down\n");
    put("/sys/class/net/eth2/flags", "0x1002\n"); /* switched off by its administrator */
    put("/sys/class/net/eth2/carrier_down_count", "1\n");
    put("/sys/class/net/veth1/operstate", "down\n"); /* virtual */
    put("/sys/class/net/veth1/flags", "0x1003\n");
    put("/sys/class/net/veth1/carrier_down_count", "1\n");
    put("/proc/pressure/cpu",
        "some avg10=2.11 avg60=1.00 avg300=0.50 total=1\nfull avg10=0.00 avg60=0 avg300=0 total=0\n");
    put("/proc/pressure/memory",
        "some avg10=50.0 avg60=0 avg300=0 total=0\nfull avg10=0.10 avg60=0 avg300=0 total=0\n");
    put("/proc/meminfo", "MemTotal: 1000000 kB\nMemFree: 1000 kB\nMemAvailable: 500000 kB\n");
    put("/dev/kmsg", "6,1,100,-;usb 1-1: new device\n SUBSYSTEM=usb\n6,2,200,-;eth0: link up\n");
    roll_links_t *links = roll_links_look(&node);
    roll_links_tell(&node, links);
    roll_links_destroy(&links);
    roll_kernel_tell(&node, 0);
    roll_pressure_tell(&node);
    roll_disk_tell(&node, NULL);
    roll_disk_tell(&node, "");
    roll_disk_tell(&node, "/nowhere/at/all");
    assert_string_equal(said, "");
}

static void test_ports_that_went_down_and_counters_that_rise(void **state)
{
    (void)state;
    port("mlx5_0", "1: DOWN\n", "1\n", "0\n");
    port("mlx5_1", "4: ACTIVE\n", "0\n", "17\n");
    put("/sys/class/net/eth0/device/uevent", "");
    put("/sys/class/net/eth0/operstate", "down\n");
    put("/sys/class/net/eth0/flags", "0x1003\n");
    put("/sys/class/net/eth0/carrier_down_count", "4\n");
    put("/sys/class/net/eth1/device/uevent", "");
    put("/sys/class/net/eth1/operstate", "up\n");
    put("/sys/class/net/eth1/statistics/tx_errors", "0\n");
    roll_links_t *links = roll_links_look(&node);
    port("mlx5_1", "4: ACTIVE\n", "0\n", "40\n");
    put("/sys/class/net/eth1/statistics/tx_errors", "9\n");
    roll_links_tell(&node, links);
    roll_links_destroy(&links);
    assert_non_null(strstr(said, "ib-down: mlx5_0 port 1 is 1: DOWN, and has been up\n"));
    assert_non_null(strstr(said, "ib-errors: mlx5_1 port 1: symbol_error rises (17 to 40)\n"));
    assert_non_null(strstr(said, "net-down: eth0 has no carrier, and has had one\n"));
    assert_non_null(strstr(said, "net-errors: eth1: tx_errors rises (0 to 9)\n"));
}

static void test_the_kernels_log_of_the_last_minutes(void **state)
{
    (void)state;
    put("/dev/kmsg", "4,1,100,-;NVRM: Xid (PCI:0000:1a:00): 31, old\n"
                     "4,2,1000,-;NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n"
                     " SUBSYSTEM=pci\n"
                     "3,3,1001,-;Out of memory: Killed process 4711 (python3)\x1b[31m\n"
                     "6,4,1002,c;mlx5_core 0000:3b:00.0: Port module event[error]\n"
                     "garbage\n;\n,,,;NVRM: Xid of nobody\n"
                     "6,5,1003,-;unrelated\n"
                     "4,6,1004,-;NVRM: Xid (PCI:0000:1c:00): 94, not terminated by a newline");
    roll_kernel_tell(&node, 1000);
    assert_string_equal(said, "kernel-xid: kernel: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n"
                              "kernel-oom: kernel: Out of memory: Killed process 4711 (python3)?[31m\n"
                              "kernel-network: kernel: mlx5_core 0000:3b:00.0: Port module event[error]\n");
    said[0] = '\0';
    node.root = "/nowhere";
    roll_kernel_tell(&node, 0);
    assert_non_null(strstr(said, "unknown: the kernel's log cannot be read"));
}

static void test_a_long_log_tells_its_newest_lines(void **state)
{
    (void)state;
    static char text[1 << 20];
    size_t used = 0;
    for (unsigned i = 0; i < 2000; i++) {
        used += (size_t)snprintf(text + used, sizeof(text) - used, "4,%u,%u,-;NVRM: Xid %u\n", i, 5000 + i, i);
        if (i == 1000) { /* a line that no kernel writes */
            memset(text + used, 'x', 20000);
            used += 20000;
            text[used++] = '\n';
        }
    }
    put("/dev/kmsg", text);
    roll_kernel_tell(&node, 5000);
    assert_string_equal(said, "kernel-xid: kernel: NVRM: Xid 1999\nkernel-xid: kernel: NVRM: Xid 1998\n"
                              "kernel-xid: kernel: NVRM: Xid 1997\n");
}

static void test_pressure_memory_and_disks(void **state)
{
    (void)state;
    put("/proc/pressure/cpu", "some avg10=83.20 avg60=1.00 avg300=0.50 total=1\n");
    put("/proc/pressure/memory", "some avg10=0 avg60=0 avg300=0 total=0\nfull avg10=12.5 avg60=0 avg300=0 total=0\n");
    put("/proc/meminfo", "MemTotal:       1000000 kB\nMemAvailable:     2048 kB\n");
    roll_pressure_tell(&node);
    assert_string_equal(said, "cpu-pressure: tasks waited for a CPU in 83 % of the last 10 s\n"
                              "memory: all tasks waited for memory in 12 % of the last 10 s\n"
                              "memory: 2 MiB of 976 MiB of memory are left\n");
    assert_int_equal(roll_disk_full(1000, 500, 100, 50), -1);
    assert_int_equal(roll_disk_full(1000, 10, 100, 50), -1);
    assert_int_equal(roll_disk_full(1000, 9, 100, 50), 100);
    assert_int_equal(roll_disk_full(1000000, 9, 100, 50), 100);
    assert_int_equal(roll_disk_full(1000, 500, 100, 0), 100);
    assert_int_equal(roll_disk_full(1000, 500, 0, 0), -1); /* a file system without numbers of files */
    assert_int_equal(roll_disk_full(0, 0, 0, 0), -1);
    assert_int_equal(roll_disk_full(10, 0, 10, 10), 100);
    assert_int_equal(roll_disk_full(10, 1, 10, 10), -1);
}

static void play(const char *text)
{
    char path[128];
    put("/nvml", text);
    snprintf(path, sizeof(path), "%s/nvml", root);
    setenv("HOSTCUDA_NVML", path, 1);
    said[0] = '\0';
    roll_gpu_tell(&node);
}

static void test_what_nvml_says(void **state)
{
    (void)state;
    play("gpus 4\nnvlink 0 3 0\n");
    assert_string_equal(said, "");
    play("gpus 4\nlost 1\nreset 2\necc 0 5\nslow 3 0x40\nslow 0 0x1\nnvlink 3 2 7\nnvlink 3 5 1\nxid 0 79\n");
    assert_string_equal(said, "gpu-ecc: GPU 0: 5 uncorrected memory errors\n"
                              "gpu-lost: GPU 1 has fallen off the bus\n"
                              "gpu-lost: GPU 2 needs a reset\n"
                              "gpu-slow: GPU 3 is slowed down by its hardware (heat)\n"
                              "gpu-nvlink: GPU 3: 2 NVLinks with replays or recoveries (the first: 2)\n"
                              "gpu-xid: GPU 0: Xid 79\n");
    play("fail 9\n");
    assert_string_equal(said, "unknown: the GPUs cannot be asked (NVML error 9)\n");
}

static void test_an_empty_root_is_no_error(void **state)
{
    (void)state;
    roll_links_t *links = roll_links_look(&node);
    roll_links_tell(&node, links);
    roll_links_destroy(&links);
    roll_pressure_tell(&node);
    assert_string_equal(said, "");
    put("/sys/class/net/..x/device/uevent", "");
    put("/sys/class/infiniband/mlx5_0/ports/1/state", "");
    put("/sys/class/infiniband/mlx5_0/ports/1/counters/link_downed", "not a number\n");
    put("/proc/pressure/cpu", "some avg10=\n");
    put("/proc/meminfo", "MemTotal: x\n");
    links = roll_links_look(&node);
    roll_links_tell(&node, links);
    roll_links_destroy(&links);
    roll_pressure_tell(&node);
    assert_string_equal(said, "");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_healthy_node_says_nothing),         TEST(test_ports_that_went_down_and_counters_that_rise),
        TEST(test_the_kernels_log_of_the_last_minutes), TEST(test_a_long_log_tells_its_newest_lines),
        TEST(test_pressure_memory_and_disks),           TEST(test_what_nvml_says),
        TEST(test_an_empty_root_is_no_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
