"""Running a plan: programs, executables, loading. Nothing here decides anything."""
