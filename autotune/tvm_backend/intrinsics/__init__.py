"""What instruction sets become in programs: tensor intrinsics, the code that they call, and schedules with them."""
