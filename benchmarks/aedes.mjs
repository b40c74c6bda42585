// aedes with its own settings on one port of this machine: node aedes.mjs PORT, beside node_modules/aedes
import { createServer } from 'node:net'
import { Aedes } from 'aedes'

const broker = await Aedes.createBroker()
createServer(broker.handle).listen(Number(process.argv[2]), '127.0.0.1')
