/* The collectives of collectives.py on MPI itself: one line of JSON for each operation and size.
 *
 *     mpirun -n 2 collectives_mpi rows.jsonl 2 7 psum,all_gather 8 1048576
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void run(const char* op, float* in, float* out, int count, int ranks, int rank) {
  const int part = count / ranks > 0 ? count / ranks : 1;
  if (strcmp(op, "psum") == 0) {
    MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  } else if (strcmp(op, "all_gather") == 0) {
    MPI_Allgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
  } else if (strcmp(op, "psum_scatter") == 0) {
    MPI_Reduce_scatter_block(in, out, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  } else if (strcmp(op, "all_to_all") == 0) {
    MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
  } else if (strcmp(op, "ppermute") == 0) {
    MPI_Sendrecv(in, count, MPI_FLOAT, (rank + 1) % ranks, 0, out, count, MPI_FLOAT,
                 (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  } else {
    fprintf(stderr, "unknown operation %s\n", op);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
}

static void measure(FILE* file, const char* op, long size, int rounds, int ranks, int rank) {
  const int count = size / 4 > 0 ? (int)(size / 4) : 1;
  const size_t slots =
      (size_t)count + (size_t)ranks; /* a row per rank, also of the smallest size */
  float* in = calloc(slots, sizeof(float));
  float* out = calloc(slots, sizeof(float));
  if (in == NULL || out == NULL) {
    fprintf(stderr, "no memory for %ld bytes\n", size);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  memset(in, 1, slots * sizeof(float)); /* calloc'd pages are all one page of zeros until written */
  memset(out, 1, slots * sizeof(float));
  const int calls = size < (1 << 20) ? 50 : size < (16 << 20) ? 5 : 1;
  for (int i = 0; i < 3; ++i) run(op, in, out, count, ranks, rank);
  if (file != NULL) {
    fprintf(file, "{\"peer\": \"mpi\", \"op\": \"%s\", \"dtype\": \"f32\", \"bytes\": %ld, ", op,
            size);
    fprintf(file, "\"in_program\": false, \"times_s\": [");
  }
  for (int round = 0; round < rounds; ++round) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    for (int i = 0; i < calls; ++i) run(op, in, out, count, ranks, rank);
    const double each = (MPI_Wtime() - start) / calls;
    if (file != NULL) fprintf(file, "%s%.9f", round > 0 ? ", " : "", each);
  }
  if (file != NULL) fprintf(file, "]}\n");
  free(in);
  free(out);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc < 6) {
    fprintf(stderr, "usage: %s file ranks rounds operations size...\n", argv[0]);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  if (ranks != atoi(argv[2])) { /* an mpirun of another MPI starts so many jobs of one rank each */
    fprintf(stderr, "%d ranks instead of %s\n", ranks, argv[2]);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  FILE* file = rank == 0 ? fopen(argv[1], "w") : NULL;
  if (rank == 0 && file == NULL) {
    perror(argv[1]);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  for (int i = 5; i < argc; ++i) {
    char* operations = strdup(argv[4]);
    for (char* op = strtok(operations, ","); op != NULL; op = strtok(NULL, ",")) {
      measure(file, op, atol(argv[i]), atoi(argv[3]), ranks, rank);
    }
    free(operations);
  }
  if (file != NULL) fclose(file);
  MPI_Finalize();
  return 0;
}
