/* Fragments of matrices are in fragments.h, which device.h includes. */
