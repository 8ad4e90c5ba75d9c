/* Serves a file system that passes every call through to a directory, and fails some of them on command. Run as
 *
 *     faulty DIRECTORY CONTROL SOURCE MOUNTPOINT
 *
 * CONTROL is a file with a `struct control`. The program maps it, so that the tests can change it at any time. SOURCE is the
 * name of the mount in the mount table. Calls whose path does not contain `match` never fail. The program runs in the
 * foreground and unmounts at SIGTERM. */
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum call { READ = 1, WRITE = 2, SYNC = 4, ALLOCATE = 8, OPEN = 16, NAMES = 32 };

struct control {
    volatile uint32_t failing;     /* the calls that fail: a sum of `enum call` */
    volatile uint32_t error;       /* the errno of failing calls */
    volatile uint32_t sync_us;     /* delay of each sync, microseconds */
    volatile uint32_t write_max;   /* the maximum bytes of a write, 0: no limit. Not applied to pages that the kernel writes back */
    volatile int64_t room;         /* files may take so many more bytes of disk, then ENOSPC; negative: no limit. As with a quota,
                                      statfs does not show it */
    volatile int64_t read_from;    /* reads fail only if they touch these bytes of the file */
    volatile int64_t read_to;
    volatile uint32_t forget;      /* a file that is opened now loses its pages in the page cache */
    volatile uint32_t failed;      /* number of calls that have failed or were delayed; this program counts them */
    char match[256];
};

static struct control *control;
static const char *root;
static pthread_mutex_t room_lock = PTHREAD_MUTEX_INITIALIZER;

struct open_file {
    int fd;
    char path[];
};

static struct open_file *of(struct fuse_file_info *info) { return (struct open_file *)(uintptr_t)info->fh; }

static const char *real_path(char *to, const char *path) {
    snprintf(to, PATH_MAX, "%s%s", root, path);
    return to;
}

#define REAL(name, path) \
    char name##_buffer[PATH_MAX]; \
    const char *name = real_path(name##_buffer, path)

static int matches(const char *path) { return !control->match[0] || strstr(path, control->match) != NULL; }

static void count_affected(void) { __atomic_add_fetch(&control->failed, 1, __ATOMIC_RELAXED); }

/* The negative errno with which this call on this path must fail, or 0. */
static int fault(enum call call, const char *path) {
    if (!(control->failing & call) || !matches(path)) return 0;
    count_affected();
    return -(int)control->error;
}

static int result(int done) { return done < 0 ? -errno : 0; }

/* Takes bytes of the remaining room; -ENOSPC if there are too few. */
static int take_room(const char *path, int64_t bytes) {
    int enough = 1;
    if (bytes <= 0 || !matches(path)) return 0;
    pthread_mutex_lock(&room_lock);
    if (control->room >= 0) {
        enough = control->room >= bytes;
        if (enough) control->room -= bytes;
    }
    pthread_mutex_unlock(&room_lock);
    if (enough) return 0;
    count_affected();
    return -ENOSPC;
}

static void give_room(const char *path, int64_t bytes) {
    if (bytes <= 0 || !matches(path)) return;
    pthread_mutex_lock(&room_lock);
    if (control->room >= 0) control->room += bytes;
    pthread_mutex_unlock(&room_lock);
}

/* The bytes of disk that a file needs to be written up to this offset, if it has no holes. */
static int64_t growth(int fd, int64_t end) {
    struct stat found;
    return fstat(fd, &found) == 0 ? end - (int64_t)found.st_blocks * 512 : 0;
}

static void *begin(struct fuse_conn_info *connection, struct fuse_config *config) {
    /* No other program changes the directory. */
    connection->want &= ~FUSE_CAP_AUTO_INVAL_DATA;
    config->use_ino = 1;
    config->hard_remove = 1;
    config->nullpath_ok = 1;
    return NULL;
}

static int do_getattr(const char *path, struct stat *to, struct fuse_file_info *info) {
    if (info) return result(fstat(of(info)->fd, to));
    REAL(real, path);
    return result(lstat(real, to));
}

static int open_as(const char *path, struct fuse_file_info *info, int flags, mode_t mode) {
    int error = fault(OPEN, path);
    if (error) return error;
    REAL(real, path);
    struct open_file *file = malloc(sizeof *file + strlen(path) + 1);
    if (!file) return -ENOMEM;
    strcpy(file->path, path);
    /* For a partial write of a page the kernel reads the page, even through a write-only descriptor. */
    if ((flags & O_ACCMODE) == O_WRONLY) flags = (flags & ~O_ACCMODE) | O_RDWR;
    file->fd = open(real, (flags & ~(O_APPEND | O_DIRECT)) | O_CLOEXEC, mode);
    if (file->fd < 0) {
        error = -errno;
        free(file);
        return error;
    }
    info->fh = (uint64_t)(uintptr_t)file;
    info->keep_cache = !control->forget;
    return 0;
}

static int do_open(const char *path, struct fuse_file_info *info) { return open_as(path, info, info->flags, 0); }

static int do_create(const char *path, mode_t mode, struct fuse_file_info *info) {
    return open_as(path, info, info->flags | O_CREAT, mode);
}

static int do_release(const char *path, struct fuse_file_info *info) {
    (void)path;
    close(of(info)->fd);
    free(of(info));
    return 0;
}

static int do_read(const char *path, char *to, size_t size, off_t at, struct fuse_file_info *info) {
    (void)path;
    int touches = at < control->read_to && at + (int64_t)size > control->read_from;
    int error = touches ? fault(READ, of(info)->path) : 0;
    if (error) return error;
    ssize_t done = pread(of(info)->fd, to, size, at);
    return done < 0 ? -errno : (int)done;
}

static int do_write(const char *path, const char *from, size_t size, off_t at, struct fuse_file_info *info) {
    (void)path;
    struct open_file *file = of(info);
    int error = fault(WRITE, file->path);
    if (error) return error;
    if (control->write_max && size > control->write_max && !info->writepage && matches(file->path)) {
        size = control->write_max;
        count_affected();
    }
    error = take_room(file->path, growth(file->fd, at + (int64_t)size));
    if (error) return error;
    ssize_t done = pwrite(file->fd, from, size, at);
    return done < 0 ? -errno : (int)done;
}

static int do_fsync(const char *path, int data_only, struct fuse_file_info *info) {
    (void)path;
    struct open_file *file = of(info);
    uint32_t us = matches(file->path) ? control->sync_us : 0;
    if (us) {
        struct timespec rest = {us / 1000000, us % 1000000 * 1000L};
        count_affected();
        while (nanosleep(&rest, &rest) != 0) { }
    }
    int error = fault(SYNC, file->path);
    if (error) return error;
    return result(data_only ? fdatasync(file->fd) : fsync(file->fd));
}

static int do_fallocate(const char *path, int mode, off_t at, off_t size, struct fuse_file_info *info) {
    (void)path;
    struct open_file *file = of(info);
    int error = fault(ALLOCATE, file->path);
    if (!error) error = take_room(file->path, growth(file->fd, at + size));
    if (error) return error;
    return result(fallocate(file->fd, mode, at, size));
}

static int do_truncate(const char *path, off_t size, struct fuse_file_info *info) {
    if (info) {
        int error = fault(ALLOCATE, of(info)->path);
        return error ? error : result(ftruncate(of(info)->fd, size));
    }
    int error = fault(ALLOCATE, path);
    if (error) return error;
    REAL(real, path);
    return result(truncate(real, size));
}

static int do_unlink(const char *path) {
    int error = fault(NAMES, path);
    if (error) return error;
    REAL(real, path);
    struct stat found;
    int known = lstat(real, &found) == 0 && S_ISREG(found.st_mode) && found.st_nlink == 1;
    if (unlink(real) < 0) return -errno;
    if (known) give_room(path, (int64_t)found.st_blocks * 512);
    return 0;
}

static int do_rename(const char *from, const char *to, unsigned int flags) {
    int error = fault(NAMES, to);
    if (error) return error;
    REAL(real_from, from);
    REAL(real_to, to);
    return result(renameat2(AT_FDCWD, real_from, AT_FDCWD, real_to, flags));
}

static int do_mkdir(const char *path, mode_t mode) {
    int error = fault(NAMES, path);
    if (error) return error;
    REAL(real, path);
    return result(mkdir(real, mode));
}

static int do_rmdir(const char *path) {
    REAL(real, path);
    return result(rmdir(real));
}

static int do_link(const char *from, const char *to) {
    int error = fault(NAMES, to);
    if (error) return error;
    REAL(real_from, from);
    REAL(real_to, to);
    return result(link(real_from, real_to));
}

static int do_symlink(const char *target, const char *path) {
    REAL(real, path);
    return result(symlink(target, real));
}

static int do_readlink(const char *path, char *to, size_t size) {
    REAL(real, path);
    ssize_t length = readlink(real, to, size - 1);
    if (length < 0) return -errno;
    to[length] = 0;
    return 0;
}

static int do_chmod(const char *path, mode_t mode, struct fuse_file_info *info) {
    if (info) return result(fchmod(of(info)->fd, mode));
    REAL(real, path);
    return result(chmod(real, mode));
}

static int do_chown(const char *path, uid_t user, gid_t group, struct fuse_file_info *info) {
    if (info) return result(fchown(of(info)->fd, user, group));
    REAL(real, path);
    return result(lchown(real, user, group));
}

static int do_utimens(const char *path, const struct timespec times[2], struct fuse_file_info *info) {
    if (info) return result(futimens(of(info)->fd, times));
    REAL(real, path);
    return result(utimensat(AT_FDCWD, real, times, AT_SYMLINK_NOFOLLOW));
}

static int do_readdir(const char *path, void *to, fuse_fill_dir_t fill, off_t at, struct fuse_file_info *info,
                      enum fuse_readdir_flags flags) {
    (void)path, (void)at, (void)flags; /* with nullpath_ok there is no path for an open directory */
    REAL(real, of(info)->path);
    DIR *directory = opendir(real);
    if (!directory) return -errno;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        struct stat found = {.st_ino = entry->d_ino, .st_mode = (mode_t)entry->d_type << 12};
        if (fill(to, entry->d_name, &found, 0, 0)) break;
    }
    closedir(directory);
    return 0;
}

static int do_opendir(const char *path, struct fuse_file_info *info) {
    REAL(real, path);
    struct open_file *file = malloc(sizeof *file + strlen(path) + 1);
    if (!file) return -ENOMEM;
    strcpy(file->path, path);
    file->fd = open(real, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file->fd < 0) {
        int error = -errno;
        free(file);
        return error;
    }
    info->fh = (uint64_t)(uintptr_t)file;
    return 0;
}

static int do_statfs(const char *path, struct statvfs *to) {
    REAL(real, path);
    return result(statvfs(real, to));
}

static int do_flock(const char *path, struct fuse_file_info *info, int operation) {
    (void)path;
    return result(flock(of(info)->fd, operation));
}

static const struct fuse_operations operations = {
    .init = begin, .getattr = do_getattr, .open = do_open, .create = do_create, .release = do_release,
    .read = do_read, .write = do_write, .fsync = do_fsync, .fallocate = do_fallocate, .truncate = do_truncate,
    .unlink = do_unlink, .rename = do_rename, .mkdir = do_mkdir, .rmdir = do_rmdir, .link = do_link,
    .symlink = do_symlink, .readlink = do_readlink, .chmod = do_chmod, .chown = do_chown,
    .utimens = do_utimens, .readdir = do_readdir, .opendir = do_opendir, .releasedir = do_release,
    .fsyncdir = do_fsync, .statfs = do_statfs, .flock = do_flock,
};

int main(int count, char **arguments) {
    if (count != 5) {
        fprintf(stderr, "usage: faulty DIRECTORY CONTROL SOURCE MOUNTPOINT\n");
        return 2;
    }
    root = arguments[1];
    int fd = open(arguments[2], O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        perror(arguments[2]);
        return 1;
    }
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (control == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    char options[PATH_MAX + 64];
    snprintf(options, sizeof options, "fsname=%s,allow_other,default_permissions", arguments[3]);
    char *with[] = {arguments[0], "-f", "-o", options, arguments[4], NULL};
    umask(0);
    return fuse_main(5, with, &operations, NULL);
}
