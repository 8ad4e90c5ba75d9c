/* Makes the disk of one process slow on command: every call that changes or syncs a regular file first sleeps
 * for as many microseconds as the file named by SLOW_DISK says, a 32-bit number that is mapped, not read.
 * Loaded by LD_PRELOAD. Stores into mapped files are not delayed, their msync is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static const volatile uint32_t *delay_us;

__attribute__((constructor)) static void look_up(void) {
    const char *path = getenv("SLOW_DISK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *at = mmap(NULL, sizeof *delay_us, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED) delay_us = at;
}

static void wait_a_while(void) {
    uint32_t us = delay_us ? *delay_us : 0;
    if (us) {
        struct timespec rest = {us / 1000000, us % 1000000 * 1000L};
        while (nanosleep(&rest, &rest) != 0) { }
    }
}

static void wait_for(int fd) {
    struct stat found;
    if (delay_us && *delay_us && fstat(fd, &found) == 0 && S_ISREG(found.st_mode)) wait_a_while();
}

#define REAL(result, name, ...)                                        \
    static result (*real)(__VA_ARGS__);                                \
    if (!real) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

int fsync(int fd) { REAL(int, fsync, int); wait_for(fd); return real(fd); }
int fdatasync(int fd) { REAL(int, fdatasync, int); wait_for(fd); return real(fd); }
int msync(void *at, size_t size, int flags) {
    REAL(int, msync, void *, size_t, int);
    wait_a_while();
    return real(at, size, flags);
}
ssize_t write(int fd, const void *from, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t);
    if (fd > 2) wait_for(fd);
    return real(fd, from, size);
}
ssize_t pwrite64(int fd, const void *from, size_t size, off64_t at) {
    REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
    wait_for(fd);
    return real(fd, from, size, at);
}
int posix_fallocate64(int fd, off64_t at, off64_t size) {
    REAL(int, posix_fallocate64, int, off64_t, off64_t);
    wait_for(fd);
    return real(fd, at, size);
}
int ftruncate64(int fd, off64_t size) {
    REAL(int, ftruncate64, int, off64_t);
    wait_for(fd);
    return real(fd, size);
}
