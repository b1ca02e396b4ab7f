# Made by tools/make_sync.py out of src/belljar/_async/__init__.py. Change that, not this.
