"""Executables behind the Open Inference Protocol, over HTTP and gRPC. Its libraries are those of the extra `serve`."""
