"""The text, in LLVM's language, that kernels for tiles have in common. It needs no TVM."""

from __future__ import annotations

# A kernel that goes over a window: in each step over `depth` bytes of each of its rows.
LOOPS = """
define i32 @{name}(ptr %a, ptr %b, ptr %c, i64 %row) {{
entry:
{start}
  %below = mul i64 %row, {gap}
  br label %line
line:
  %y = phi i64 [ 0, %entry ], [ %next_y, %line_end ]
  %first = phi ptr [ %a, %entry ], [ %next_first, %line_end ]
  %first_weights = phi ptr [ %b, %entry ], [ %next_weights, %line_end ]
  br label %step
step:
  %x = phi i64 [ 0, %line ], [ %next_x, %step ]
  %pixels = phi ptr [ %first, %line ], [ %next_pixels, %step ]
  %weights = phi ptr [ %first_weights, %line ], [ %next_weights, %step ]
{body}
  %next_pixels = getelementptr i8, ptr %pixels, i64 {depth}
  %next_weights = getelementptr i8, ptr %weights, i64 {weight_step}
  %next_x = add i64 %x, 1
  %more_x = icmp ult i64 %next_x, {steps}
  br i1 %more_x, label %step, label %line_end
line_end:
  %next_first = getelementptr i8, ptr %first, i64 %below
  %next_y = add i64 %y, 1
  %more_y = icmp ult i64 %next_y, {high}
  br i1 %more_y, label %line, label %end
end:
{end}
  ret i32 0
}}
"""


def at(name: str, base: str, offset: int) -> str:
    """Return the definition of the address that lies behind another one."""
    return f"  %{name} = getelementptr i8, ptr {base}, i64 {offset}"
