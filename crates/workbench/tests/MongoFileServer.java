// SPDX-License-Identifier: Apache-2.0
// A server with the wire protocol of MongoDB whose documents are in a file of H2.
//
// usage: MongoFileServer FILE      prints its port on the loopback interface; ends with its input

import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.MongoVersion;
import de.bwaldvogel.mongo.backend.h2.H2Backend;
import java.util.List;

public class MongoFileServer {
    // The oldest version that the driver of the workbench talks to. The server knows messages of
    // this protocol, but states an older one by default.
    static final MongoVersion VERSION = new MongoVersion() {
        @Override
        public List<Integer> getVersionArray() {
            return List.of(4, 4, 0);
        }

        @Override
        public int getWireVersion() {
            return 9;
        }
    };

    public static void main(String[] arguments) throws Exception {
        MongoServer server = new MongoServer(new H2Backend(arguments[0]).version(VERSION));
        System.out.println(server.bind().getPort());
        while (System.in.read() >= 0) {
        }
        server.shutdownNow();
    }
}
