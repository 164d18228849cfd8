"""Going into a running process that nobody prepared.

Here: which process it is and what forbids it (``target_process``), where its Python lies
(``python_symbols``), one of its threads stopped and made to call a function (``stopped_thread``,
``injection``), the ways in (``entry``), and the words that are exchanged (``meeting_point``).
``inside/`` is what runs in the other process.
"""
