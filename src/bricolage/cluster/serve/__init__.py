"""A cluster that is served: jobs come in, a policy decides, an engine runs them, a log remembers."""
