package pinion;

import com.mongodb.ConnectionString;
import com.mongodb.MongoClientSettings;
import com.mongodb.event.ServerHeartbeatFailedEvent;
import com.mongodb.event.ServerHeartbeatSucceededEvent;
import com.mongodb.event.ServerMonitorListener;
import com.mongodb.reactivestreams.client.MongoClients;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.data.mongodb.MongoDatabaseFactory;
import org.springframework.data.mongodb.MongoTransactionManager;
import org.springframework.data.mongodb.config.AbstractMongoClientConfiguration;
import org.springframework.data.mongodb.core.MongoTemplate;
import org.springframework.data.mongodb.core.ReactiveMongoTemplate;
import org.springframework.data.mongodb.core.SimpleReactiveMongoDatabaseFactory;
import org.springframework.data.mongodb.gridfs.GridFsTemplate;
import org.springframework.data.mongodb.repository.config.EnableMongoRepositories;
import org.springframework.transaction.annotation.EnableTransactionManagement;

/** Everything at Spring's defaults, but indexes are made of annotations. */
@Configuration
@EnableMongoRepositories(considerNestedRepositories = true)
@EnableTransactionManagement(proxyTargetClass = true)
class Config extends AbstractMongoClientConfiguration {
    static String uri;
    static final Queue<Throwable> FAILED_HEARTBEATS = new ConcurrentLinkedQueue<>();
    /** Heartbeats that the server answered by itself, by its address. */
    static final Map<Object, Integer> STREAMED_HEARTBEATS = new ConcurrentHashMap<>();

    @Override
    protected String getDatabaseName() {
        return "spring";
    }

    @Override
    protected boolean autoIndexCreation() {
        return true;
    }

    @Override
    protected void configureClientSettings(MongoClientSettings.Builder settings) {
        settings.applyConnectionString(new ConnectionString(uri)).applyToServerSettings(server -> server.addServerMonitorListener(new ServerMonitorListener() {
            @Override
            public void serverHeartbeatSucceeded(ServerHeartbeatSucceededEvent event) {
                if (event.isAwaited()) STREAMED_HEARTBEATS.merge(event.getConnectionId().getServerId().getAddress(), 1, Integer::sum);
            }

            @Override
            public void serverHeartbeatFailed(ServerHeartbeatFailedEvent event) {
                FAILED_HEARTBEATS.add(event.getThrowable());
            }
        }));
    }

    @Bean
    MongoTransactionManager transactions(MongoDatabaseFactory factory) {
        return new MongoTransactionManager(factory);
    }

    @Bean
    Bank bank(MongoTemplate template) {
        return new Bank(template);
    }

    @Bean
    GridFsTemplate files(MongoDatabaseFactory factory, MongoTemplate template) {
        return new GridFsTemplate(factory, template.getConverter());
    }

    @Bean
    SimpleReactiveMongoDatabaseFactory reactiveFactory() {
        return new SimpleReactiveMongoDatabaseFactory(MongoClients.create(uri), "spring");
    }

    @Bean
    ReactiveMongoTemplate reactive(SimpleReactiveMongoDatabaseFactory factory) {
        return new ReactiveMongoTemplate(factory);
    }
}
