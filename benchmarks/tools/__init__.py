"""What benchmarks share: processes alone, machines and their floors, links, load, processors."""
