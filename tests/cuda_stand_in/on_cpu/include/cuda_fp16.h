/* Types of 16 bits are in half.h, which device.h includes. */
