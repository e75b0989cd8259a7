/* Gradient averaging for other frameworks, in five steps: initialise, broadcast the initial parameters, average
 * gradients in every step, finalise. Every function returns an exit code; no exception leaves the library.
 *
 * Start the program with mpirun; alone it is the only rank and every mean is the value itself. All ranks must make the
 * same calls in the same order. A rank that dies, that ends its run while others still wait for it, or whose calling
 * thread makes no call for ten minutes while others wait, ends the process of every other with exit code 76 and one
 * line on standard error that names it. Of several teams (below) one that stops while another goes on is not
 * noticed. */
#ifndef CONVOY_COMM_H
#define CONVOY_COMM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum convoy_comm_code {
  CONVOY_COMM_OK = 0,
  CONVOY_COMM_RUNTIME = 1, /* MPI or the machine failed */
  CONVOY_COMM_USAGE = 2,   /* a wrong argument, or a call in the wrong order */
  CONVOY_COMM_LOST = 76    /* another rank is gone */
};

enum convoy_comm_type { CONVOY_COMM_F32 = 0, CONVOY_COMM_F64 = 1 };

/* Starts MPI, unless the caller has (with at least MPI_THREAD_SERIALIZED; lost ranks are noticed with
 * MPI_THREAD_MULTIPLE only, and below it no call may overlap one of the caller's own to MPI), and `teams` thread teams:
 * team i adds up with threads_of_team[i] threads (at least 1). Teams are independent of each other: two models, or the
 * parts of one, may average at the same time, each from one thread of the caller. */
int convoy_comm_initialise(const int* threads_of_team, int teams);

int convoy_comm_rank(int* rank);
int convoy_comm_size(int* size);

/* The root's bytes on every rank. Where sizes or roots differ between ranks, or one of them passes a wrong argument,
 * all get CONVOY_COMM_USAGE and keep their bytes; a wrong team is told to its caller alone. */
int convoy_comm_broadcast(int team, void* data, size_t bytes, int root);

/* tensors[i] holds counts[i] elements; each becomes its mean over all ranks, the same bits on every rank, in which
 * subnormal numbers count as zero. Where numbers, counts or types differ between ranks, or one of them passes a wrong
 * argument, all get CONVOY_COMM_USAGE and keep their tensors; a wrong team is told to its caller alone. */
int convoy_comm_average(int team, void* const* tensors, const size_t* counts, int tensor_count,
                        enum convoy_comm_type type);

/* Behind it the library may be initialised again, unless it was what started MPI, which starts once. */
int convoy_comm_finalise(void);

/* What the last failed call of this thread complained about; empty where none did. */
const char* convoy_comm_error(void);

#ifdef __cplusplus
}
#endif
#endif
