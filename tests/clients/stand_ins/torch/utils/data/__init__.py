def get_worker_info():
    """Of a process that loads data; there is none."""
    return None
