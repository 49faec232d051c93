/*
 * Shifts the wall clock of one process, at run time, from outside.
 *
 * Loaded with LD_PRELOAD. LATCHWORK_CLOCK names a file that is mapped here and written by the
 * test: where the shifted clock stood at one moment of the real clock, and how fast it has run
 * since. Only the wall clock is shifted; CLOCK_MONOTONIC and CLOCK_BOOTTIME stay as they are, as
 * they do when somebody sets a machine's clock.
 *
 * Forked children (for example of BGSAVE) inherit the mapping and thus the shift.
 *
 * Programs in Go do not call the C library; they call what the kernel maps into each process. With
 * LATCHWORK_CLOCK_OF_GO set, the first bytes of that function are replaced by a jump to here (on
 * x86-64 alone).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)
#define MILLION INT64_C(1000000)

/* The file. All numbers are 64 bits wide and in the machine's own byte order. */
struct page {
    /* Odd while the writer is at work; a reader that saw it change reads again. */
    _Atomic uint64_t version;
    _Atomic int64_t real;    /* a moment of the real clock, in nanoseconds */
    _Atomic int64_t shifted; /* the shifted clock at that moment */
    _Atomic int64_t rate;    /* how much faster it runs, in millionths; -1000000 stands still */
};

static struct page *page;
static int (*real_clock)(clockid_t, struct timespec *);

static void take_over_kernel_clock(void);

/* Runs before main. Calls before that see the real clock, through the system call. */
__attribute__((constructor)) static void set_up(void)
{
    const char *path = getenv("LATCHWORK_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *at = mmap(NULL, sizeof(struct page), PROT_READ, MAP_SHARED, file, 0);
        close(file);
        if (at != MAP_FAILED)
            page = at;
    }
    if (getenv("LATCHWORK_CLOCK_OF_GO")) {
        take_over_kernel_clock();
        return;
    }
    /* The C library's own function needs no system call. */
    real_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
}

static int ask(clockid_t id, struct timespec *t)
{
    return real_clock ? real_clock(id, t) : (int)syscall(SYS_clock_gettime, id, t);
}

static int64_t shift(int64_t now)
{
    uint64_t before, after;
    int64_t real, shifted, rate;

    if (!page)
        return now;
    do {
        before = atomic_load(&page->version);
        real = atomic_load(&page->real);
        shifted = atomic_load(&page->shifted);
        rate = atomic_load(&page->rate);
        after = atomic_load(&page->version);
    } while (before != after || before % 2 != 0);
    /* 128 bits: a day in nanoseconds times a million is more than 64. */
    return shifted + (int64_t)((__int128)(now - real) * (MILLION + rate) / MILLION);
}

static int64_t wall_clock(void)
{
    struct timespec t;

    ask(CLOCK_REALTIME, &t);
    return shift((int64_t)t.tv_sec * SECOND + t.tv_nsec);
}

int clock_gettime(clockid_t id, struct timespec *t)
{
    int64_t now;

    if (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)
        return ask(id, t);
    now = wall_clock();
    t->tv_sec = now / SECOND;
    t->tv_nsec = now % SECOND;
    return 0;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    int64_t now = wall_clock();

    (void)zone;
    t->tv_sec = now / SECOND;
    t->tv_usec = now % SECOND / 1000;
    return 0;
}

time_t time(time_t *out)
{
    time_t now = wall_clock() / SECOND;

    if (out)
        *out = now;
    return now;
}

#ifdef __x86_64__

/* Stands in for the kernel's function: no C library, no stack to speak of, any thread. */
static long kernel_clock(clockid_t id, struct timespec *t)
{
    long answer;

    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "a"((long)SYS_clock_gettime), "D"((long)id), "S"(t)
                     : "rcx", "r11", "memory");
    if (answer == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        int64_t now = shift((int64_t)t->tv_sec * SECOND + t->tv_nsec);

        t->tv_sec = now / SECOND;
        t->tv_nsec = now % SECOND;
    }
    return answer;
}

/* Where the kernel's image has this function. */
static unsigned char *find(const unsigned char *image, const char *name)
{
    const Elf64_Ehdr *head = (const void *)image;
    const Elf64_Phdr *part = (const void *)(image + head->e_phoff);
    const Elf64_Dyn *dynamic = NULL;
    const Elf64_Sym *symbols = NULL;
    const char *names = NULL;
    size_t from = 0;

    for (int i = 0; i < head->e_phnum; i++) {
        if (part[i].p_type == PT_LOAD)
            from = part[i].p_vaddr - part[i].p_offset;
        else if (part[i].p_type == PT_DYNAMIC)
            dynamic = (const void *)(image + part[i].p_offset);
    }
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        if (dynamic->d_tag == DT_SYMTAB)
            symbols = (const void *)(image + dynamic->d_un.d_ptr - from);
        else if (dynamic->d_tag == DT_STRTAB)
            names = (const char *)(image + dynamic->d_un.d_ptr - from);
    }
    /* The names stand behind the symbols. */
    for (const Elf64_Sym *s = symbols; s && names && (const char *)s < names; s++)
        if (s->st_value && strcmp(names + s->st_name, name) == 0)
            return (unsigned char *)image + s->st_value - from;
    return NULL;
}

static void take_over_kernel_clock(void)
{
    const unsigned char *image = (const void *)getauxval(AT_SYSINFO_EHDR);
    unsigned char *at = image ? find(image, "__vdso_clock_gettime") : NULL;
    size_t page_size = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *from = at - (uintptr_t)at % page_size;
    void (*target)(void) = (void (*)(void))kernel_clock;
    /* movabs rax, target; jmp rax */
    unsigned char jump[12] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0};

    memcpy(jump + 2, &target, sizeof target);
    if (!at || mprotect(from, 2 * page_size, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
        return;
    memcpy(at, jump, sizeof jump);
    mprotect(from, 2 * page_size, PROT_READ | PROT_EXEC);
}

#else

static void take_over_kernel_clock(void) {}

#endif
