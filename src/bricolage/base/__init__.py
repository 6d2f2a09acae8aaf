"""What everything stands on: options, the codec of dataclasses, folders, time, and the limits of a process. It knows no models."""
