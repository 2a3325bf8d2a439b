/* Generated code includes this; all that it needs is in device.h, which the compiler includes first. */
