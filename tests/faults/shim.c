/* What a disk can do to a process, put between it and the kernel by LD_PRELOAD.
 *
 * Only files in the folder FAULTS_FOLDER are touched. FAULTS_CONTROL is a file of numbers (struct control)
 * that both sides map: a test changes it while the process runs. FAULTS_RECORD is the file that receives
 * every operation in order, with its data; without it nothing is recorded. While recording nothing is really
 * synced: what would have been is in the recording.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FILES 65536
#define NOTES ".notes" /* ends the names of files that are no part of the disk: what somebody saw */
#define EXPORT __attribute__((visibility("default")))
#define REAL(name, type) ((type)find(&real_##name, #name))

struct control {
    volatile int64_t quota;       /* bytes that the folder may have; below 0: no limit */
    volatile int64_t write_error; /* errno of every write and truncation; 0: none */
    volatile int64_t sync_error;  /* errno of every sync; 0: none */
    volatile int64_t sync_delay;  /* milliseconds of every sync; below 0: until that changes */
    volatile int64_t refused;     /* counted: operations that failed because of the above */
    volatile int64_t syncs;       /* counted: syncs that have begun */
};

struct entry { /* of the recording; the name and the data follow */
    char kind;
    uint8_t pad;
    uint16_t name;
    uint32_t data;
    uint64_t inode;
    int64_t at;
    int64_t size;
};

typedef int (*int_fd)(int);
typedef int (*int_open)(const char *, int, ...);
typedef int (*int_openat)(int, const char *, int, ...);
typedef int (*int_paths)(const char *, const char *);
typedef int (*int_unlink)(int, const char *, int);
typedef int (*int_size)(int, off_t);
typedef int (*int_allocate)(int, off_t, off_t);
typedef ssize_t (*size_write)(int, const void *, size_t);
typedef ssize_t (*size_pwrite)(int, const void *, size_t, off_t);

static void *real_open64, *real_openat64, *real_write, *real_pwrite64, *real_ftruncate64, *real_fsync;
static void *real_fdatasync, *real_unlinkat, *real_rename, *real_close, *real_posix_fallocate64;

static void *find(void **known, const char *name)
{
    return *known ? *known : (*known = dlsym(RTLD_NEXT, name));
}

static struct control none = {.quota = -1};
static struct control *control = &none;
static char folder[PATH_MAX];
static size_t folder_size;
static int record = -1;
static uint64_t inodes[FILES]; /* of each descriptor that is open below the folder; 0: another */
static char spared[FILES];     /* whether it is of notes, to which no fault happens */
static int64_t tokens;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void begin(void)
{
    const char *where = getenv("FAULTS_FOLDER"), *control_path = getenv("FAULTS_CONTROL");
    const char *record_path = getenv("FAULTS_RECORD");
    if (!where || !control_path)
        return;
    snprintf(folder, sizeof folder, "%s", where);
    int fd = REAL(open64, int_open)(control_path, O_RDWR | O_CLOEXEC);
    void *map = fd < 0 ? MAP_FAILED
                       : mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        abort();
    control = map;
    REAL(close, int_fd)(fd);
    if (record_path)
        record = REAL(open64, int_open)(record_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (record_path && record < 0)
        abort();
    folder_size = strlen(folder);
}

/* The name below the folder, "" for the folder itself, NULL for what is elsewhere. */
static const char *inside(const char *path)
{
    if (!folder_size || !path || strncmp(path, folder, folder_size))
        return NULL;
    if (!path[folder_size])
        return path + folder_size;
    return path[folder_size] == '/' ? path + folder_size + 1 : NULL;
}

static uint64_t inode_of(int fd)
{
    return fd >= 0 && fd < FILES ? __atomic_load_n(&inodes[fd], __ATOMIC_ACQUIRE) : 0;
}

static int refuse(int error)
{
    __atomic_add_fetch(&control->refused, 1, __ATOMIC_RELAXED);
    errno = error;
    return -1;
}

/* One entry of the recording; whoever calls holds the lock. */
static void note(char kind, const char *name, const void *data, size_t size, uint64_t inode, int64_t at,
                 int64_t length)
{
    if (record < 0)
        return;
    struct entry head = {kind, 0, (uint16_t)strlen(name), (uint32_t)size, inode, at, length};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)name, head.name}, {(void *)data, size}};
    if (writev(record, parts, 3) != (ssize_t)(sizeof head + head.name + size))
        abort();
}

/* ---- opening */

static int opened(const char *name, int fd, int flags, int existed)
{
    struct stat found;
    if (fd < 0 || fd >= FILES || fstat(fd, &found))
        return fd;
    int directory = S_ISDIR(found.st_mode);
    note(directory ? 'D' : existed ? 'O' : 'C', name, "", 0, found.st_ino, 0, found.st_size);
    if (existed && (flags & O_TRUNC) && !directory)
        note('T', "", "", 0, found.st_ino, 0, 0);
    spared[fd] = strlen(name) > strlen(NOTES) && !strcmp(name + strlen(name) - strlen(NOTES), NOTES);
    __atomic_store_n(&inodes[fd], found.st_ino, __ATOMIC_RELEASE);
    return fd;
}

static int open_any(int at, const char *path, int flags, mode_t mode)
{
    const char *name = at == AT_FDCWD || path[0] == '/' ? inside(path) : NULL;
    if (!name)
        return REAL(openat64, int_openat)(at, path, flags, mode);
    struct stat before;
    pthread_mutex_lock(&lock);
    int existed = !stat(path, &before);
    int fd = opened(name, REAL(openat64, int_openat)(at, path, flags, mode), flags, existed);
    pthread_mutex_unlock(&lock);
    return fd;
}

static mode_t mode_of(int flags, va_list more)
{
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
}

#define OPEN(name, ...)                                   \
    {                                                     \
        va_list more;                                     \
        va_start(more, flags);                            \
        mode_t mode = mode_of(flags, more);               \
        va_end(more);                                     \
        return open_any(__VA_ARGS__, path, flags, mode);  \
    }

EXPORT int open(const char *path, int flags, ...) OPEN(open, AT_FDCWD)
EXPORT int open64(const char *path, int flags, ...) OPEN(open64, AT_FDCWD)
EXPORT int openat(int at, const char *path, int flags, ...) OPEN(openat, at)
EXPORT int openat64(int at, const char *path, int flags, ...) OPEN(openat64, at)
EXPORT int __open_2(const char *path, int flags) { return open_any(AT_FDCWD, path, flags, 0); }
EXPORT int __open64_2(const char *path, int flags) { return open_any(AT_FDCWD, path, flags, 0); }

EXPORT int creat(const char *path, mode_t mode)
{
    return open_any(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

EXPORT int creat64(const char *path, mode_t mode) { return creat(path, mode); }

EXPORT int close(int fd)
{
    if (inode_of(fd))
        __atomic_store_n(&inodes[fd], 0, __ATOMIC_RELEASE);
    return REAL(close, int_fd)(fd);
}

/* ---- writing */

/* Bytes of all files of the folder. */
static int64_t used(void)
{
    DIR *listing = opendir(folder);
    int64_t sum = 0;
    struct stat found;
    for (struct dirent *one; listing && (one = readdir(listing));)
        if (!fstatat(dirfd(listing), one->d_name, &found, AT_SYMLINK_NOFOLLOW) && S_ISREG(found.st_mode))
            sum += found.st_size;
    if (listing)
        closedir(listing);
    return sum;
}

/* How many of *count* bytes at *at* have room: what is there already may always be written over. */
static int64_t room(int fd, int64_t count, int64_t at)
{
    struct stat found;
    if (control->quota < 0 || fstat(fd, &found) || at + count <= found.st_size)
        return count;
    int64_t left = control->quota - used(), grow = at + count - found.st_size;
    return left >= grow ? count : count - grow + (left > 0 ? left : 0);
}

/* A disk that fills up takes a part of the last write, and nothing of the next. */
static ssize_t write_at(int fd, uint64_t inode, const void *data, size_t count, off_t at)
{
    if (control->write_error && !spared[fd])
        return refuse((int)control->write_error);
    int64_t fits = spared[fd] ? (int64_t)count : room(fd, (int64_t)count, at);
    if (fits <= 0 && count)
        return refuse(ENOSPC);
    ssize_t done = REAL(pwrite64, size_pwrite)(fd, data, (size_t)fits, at);
    if (done > 0)
        note('W', "", data, (size_t)done, inode, at, done);
    return done;
}

EXPORT ssize_t pwrite64(int fd, const void *data, size_t count, off_t at)
{
    uint64_t inode = inode_of(fd);
    if (!inode)
        return REAL(pwrite64, size_pwrite)(fd, data, count, at);
    pthread_mutex_lock(&lock);
    ssize_t done = write_at(fd, inode, data, count, at);
    pthread_mutex_unlock(&lock);
    return done;
}

EXPORT ssize_t pwrite(int fd, const void *data, size_t count, off_t at)
{
    return pwrite64(fd, data, count, at);
}

EXPORT ssize_t write(int fd, const void *data, size_t count)
{
    uint64_t inode = inode_of(fd);
    if (!inode)
        return REAL(write, size_write)(fd, data, count);
    pthread_mutex_lock(&lock);
    off_t at = lseek(fd, 0, fcntl(fd, F_GETFL) & O_APPEND ? SEEK_END : SEEK_CUR);
    ssize_t done = write_at(fd, inode, data, count, at);
    if (done > 0)
        lseek(fd, at + done, SEEK_SET);
    pthread_mutex_unlock(&lock);
    return done;
}

EXPORT ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at)
{
    ssize_t sum = 0;
    for (int i = 0; i < count; i++) {
        ssize_t done = pwrite64(fd, parts[i].iov_base, parts[i].iov_len, at + sum);
        if (done < 0)
            return sum ? sum : done;
        sum += done;
        if ((size_t)done < parts[i].iov_len)
            break;
    }
    return sum;
}

EXPORT ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t at)
{
    return pwritev(fd, parts, count, at);
}

static int resize(int fd, uint64_t inode, off_t size)
{
    struct stat found;
    int64_t grow = fstat(fd, &found) ? 0 : size - found.st_size;
    if (control->write_error)
        return refuse((int)control->write_error);
    if (grow > 0 && room(fd, grow, found.st_size) < grow)
        return refuse(ENOSPC);
    int done = REAL(ftruncate64, int_size)(fd, size);
    if (!done)
        note('T', "", "", 0, inode, 0, size);
    return done;
}

EXPORT int ftruncate64(int fd, off_t size)
{
    uint64_t inode = inode_of(fd);
    if (!inode)
        return REAL(ftruncate64, int_size)(fd, size);
    pthread_mutex_lock(&lock);
    int done = resize(fd, inode, size);
    pthread_mutex_unlock(&lock);
    return done;
}

EXPORT int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

EXPORT int posix_fallocate64(int fd, off_t at, off_t size)
{
    struct stat found;
    if (!inode_of(fd))
        return REAL(posix_fallocate64, int_allocate)(fd, at, size);
    return fstat(fd, &found) || at + size <= found.st_size || !ftruncate64(fd, at + size) ? 0 : errno;
}

EXPORT int posix_fallocate(int fd, off_t at, off_t size) { return posix_fallocate64(fd, at, size); }

/* ---- syncing */

static void note_sync(char kind, uint64_t inode, int64_t token, int64_t error)
{
    pthread_mutex_lock(&lock);
    note(kind, "", "", 0, inode, token, error);
    pthread_mutex_unlock(&lock);
}

static void wait_as_told(void)
{
    struct timespec tick = {0, 1000000};
    for (int64_t passed = 0; control->sync_delay < 0 || passed < control->sync_delay; passed++)
        nanosleep(&tick, NULL);
}

/* Only what was written before a sync began is safe at its end: both are recorded. */
static int sync_any(int fd, uint64_t inode, int_fd real)
{
    int64_t token = __atomic_add_fetch(&tokens, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&control->syncs, 1, __ATOMIC_RELAXED);
    note_sync('B', inode, token, 0);
    wait_as_told();
    int error = (int)control->sync_error;
    if (!error && record < 0 && real(fd))
        error = errno;
    note_sync('E', inode, token, error);
    return error ? refuse(error) : 0;
}

EXPORT int fsync(int fd)
{
    uint64_t inode = inode_of(fd);
    return inode ? sync_any(fd, inode, REAL(fsync, int_fd)) : REAL(fsync, int_fd)(fd);
}

EXPORT int fdatasync(int fd)
{
    uint64_t inode = inode_of(fd);
    return inode ? sync_any(fd, inode, REAL(fdatasync, int_fd)) : REAL(fdatasync, int_fd)(fd);
}

/* ---- names */

EXPORT int unlinkat(int at, const char *path, int flags)
{
    const char *name = at == AT_FDCWD || path[0] == '/' ? inside(path) : NULL;
    if (!name)
        return REAL(unlinkat, int_unlink)(at, path, flags);
    pthread_mutex_lock(&lock);
    int done = REAL(unlinkat, int_unlink)(at, path, flags);
    if (!done)
        note('U', name, "", 0, 0, 0, 0);
    pthread_mutex_unlock(&lock);
    return done;
}

EXPORT int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }

EXPORT int rename(const char *from, const char *to)
{
    const char *name = inside(from), *other = inside(to);
    if (!name || !other)
        return REAL(rename, int_paths)(from, to);
    pthread_mutex_lock(&lock);
    int done = REAL(rename, int_paths)(from, to);
    if (!done)
        note('R', name, other, strlen(other), 0, 0, 0);
    pthread_mutex_unlock(&lock);
    return done;
}
