"""Messages and tasks as bytes, by the native codec.

Entry points: `codec.dumps`, `codec.loads` and `codec.encode` stand for the functions of
``distributed.protocol.core``; `codec.load_task` reads a task wherever a pickle is loaded;
`pickled_task.PickledTask` is a task that stays a pickle on the scheduler; `task_fallback` pickles
what the codec does not write; `device_arrays` registers serializers of arrays on GPUs.

Threads: any thread may call the codec; Dask calls it in its offload thread for large messages.

Locks: none in Python.

Invariants: either side reads what Dask's own codec wrote, and the reverse. A task that cannot be
written by the codec is pickled by Dask's rules, with the same errors. Modules here import `compat`
and no other package.
"""
