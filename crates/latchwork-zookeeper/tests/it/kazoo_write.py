"""Writes a value to /stock in a transaction that checks a lock's node: HOST PATH VERSION VALUE."""

import sys

from kazoo.client import KazooClient

host, path, version, value = sys.argv[1:]
client = KazooClient(host, timeout=4)
client.start()
client.ensure_path("/stock")
transaction = client.transaction()
transaction.check(path, int(version))
transaction.set_data("/stock", value.encode())
checked, written = transaction.commit()
print("refused" if isinstance(checked, Exception) else "written", client.get("/stock")[0].decode())
