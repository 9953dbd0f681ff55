// Linked into every program of a sanitizer build. MPI loads plugins, keeps some of their memory to the end, and unloads them
// first: LeakSanitizer could then name no module. So plugins stay loaded, and leaks inside MPI's own libraries are not reported.

extern "C" {

int dlclose(void*) { return 0; }

const char* __ubsan_default_options() { return "print_stacktrace=1"; }

const char* __lsan_default_options() { return "print_suppressions=0"; }

// MPI's libraries have no frame pointers, so a stack ends in the first of them, or in the libc function that it called: none
// of our own code uses vasprintf. libhdf5 1.10 leaks when it meets a damaged object header, and keeps its tables to the end
// because its exit handler is off (framework/hdf5_file.cpp says why).
const char* __lsan_default_suppressions() {
  return "leak:libopen-pal\nleak:libopen-rte\nleak:libmpi.so\nleak:libpmix\nleak:libhwloc\nleak:libevent\n"
         "leak:/openmpi3/mca_\nleak:/pmix2/\nleak:libuc\nleak:libfabric\nleak:libibverbs\nleak:libnl-\nleak:librdmacm\n"
         "leak:libmunge\nleak:vasprintf\nleak:libhdf5\n";
}
}
