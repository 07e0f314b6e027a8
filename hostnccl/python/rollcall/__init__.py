"""rollcall: what a Python job can ask of rollcall: `rollcall.rehearse`, `rollcall.torch`, `rollcall.moe`."""
