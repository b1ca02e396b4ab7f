# Made by tools/make_sync.py out of tests/asynchronous/__init__.py. Change that, not this.
