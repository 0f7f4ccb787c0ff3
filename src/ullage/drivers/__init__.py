"""Ask the kernel and its libraries: the only code that opens a kernel file or loads a library.

It decides nothing.
"""
