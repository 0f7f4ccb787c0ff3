"""From readings that disagree to one number, and a ledger that adds up to it.

Nothing here reads anything; callers do, at the edge:

    snapshot(
        readings=host.read(),
        processes=host.read_processes(host.process_tree(os.getpid())),
        taken_at_s=time.time(),
    )
"""
