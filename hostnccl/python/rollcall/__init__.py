"""rollcall: what a Python job can ask of rollcall; today that is `rollcall.rehearse`."""
