"""One artifact, used for long, from many threads, beside others, through forks, signals and the end of the interpreter."""
