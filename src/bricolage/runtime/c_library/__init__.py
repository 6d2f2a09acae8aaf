"""Plans that leave Python: a plan of the native engine alone as a C library, in sources."""
