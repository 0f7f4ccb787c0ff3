"""Ask the kernel and its libraries.  The only code that opens a kernel file or loads a library; it decides nothing."""
